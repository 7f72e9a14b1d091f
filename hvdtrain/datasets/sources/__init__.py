"""Data that need not fit into memory: one file per format, each with a `rows.RowSource`.

A new format is a new file here with a function that returns a `rows.Found`, which `datasets.own` calls.
"""
