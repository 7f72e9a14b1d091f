"""A run's folder: its record, checkpoints, metrics, plots and logs."""
