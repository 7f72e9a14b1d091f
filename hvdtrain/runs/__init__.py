"""A run's folder: its record, checkpoints, metrics, plot and logs."""
