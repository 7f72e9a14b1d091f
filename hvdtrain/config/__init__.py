"""Options: those that decide a run's result (`Config`), those that never do (`RuntimeOptions`), recipes, and their JSON form."""
