"""The doctor's checks, one file per topic."""
