"""Horovod's own tests, from a source tree that the user names, run with two variants of Horovod's core and compared."""
