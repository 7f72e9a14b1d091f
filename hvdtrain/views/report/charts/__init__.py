"""The charts of a report: one file for each subject."""
