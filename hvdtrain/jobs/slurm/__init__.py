"""Batch jobs of Slurm: what the user adds to a script, which jobs were submitted, their states, and their end.

`sbatch.py` in the folder above writes the script and submits it.
"""
