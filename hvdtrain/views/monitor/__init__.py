"""Runs seen from outside: reads what training leaves in their folders, also while it continues, and shows it."""
