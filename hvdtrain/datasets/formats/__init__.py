"""Readers of data: what is read whole becomes NumPy arrays, and what is read row by row a `rows.CheckedRows`.

A new format is a function here that `datasets.registry` calls. Files are untrusted input: readers raise `Malformed`, or
what a library raises, and `reading.wrap_errors` turns either into a UserError that names the file.
"""
