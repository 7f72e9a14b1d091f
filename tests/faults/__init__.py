"""Faults injected into real jobs: what `make chaos` runs, and tests of the watchdog."""
