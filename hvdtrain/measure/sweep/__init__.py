"""Sweeps: training with all combinations of some options, one job for each, and how they compare."""
