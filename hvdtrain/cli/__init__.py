"""Commands: from a command line to an exit status."""
