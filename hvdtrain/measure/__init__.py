"""Measurements over many jobs: strategies, options, and predictions for larger clusters."""
