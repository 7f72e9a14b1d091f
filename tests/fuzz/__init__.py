"""Property tests of every parser: damaged input gives a value or a one-line error, never a crash, a hang or a bomb."""
