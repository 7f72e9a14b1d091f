"""Batch jobs of Slurm: their script, which jobs were submitted, their states, and their end."""
