"""Trackers: where a run's records go in addition to its folder."""
