"""Options: those that decide a run's result (`Config`), those that do not (`RuntimeOptions`), recipes, JSON form."""
