"""Benchmarks: strategies and allreduces side by side."""
