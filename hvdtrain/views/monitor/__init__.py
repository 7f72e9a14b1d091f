"""Runs seen from outside: reads what training leaves in their folders, also while it goes on, and shows it."""
