"""Diagnosis of an installation, a machine or a job."""
