"""Benchmarks: all strategies, and the allreduces that they use, measured on one machine."""
