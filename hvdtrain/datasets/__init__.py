"""Data sets: built-in, published and the user's own; file formats, downloads and sharding."""
