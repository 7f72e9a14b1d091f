"""Readers of data files, one file per format: bytes in, NumPy arrays out.

A new format is a new file here with a function `read_<format>(path, ...)`, which `datasets.own` calls for the user's
files. Files are untrusted input: readers raise `Malformed`, or what a library raises, and `reading.wrap_errors` turns
either into a UserError that names the file.
"""
