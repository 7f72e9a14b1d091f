"""Timelines of steps (`--timeline`): spans of all ranks on one clock, in one file, and a summary in words."""
