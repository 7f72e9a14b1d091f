"""Batch jobs of Slurm: their script, and its submission."""
