"""Commands: from a command line to an exit status."""

COMMANDS = (
    *("train", "launch", "doctor", "bench", "sweep", "scale", "report"),
    *("runs", "show", "diff", "replay", "watch", "predict", "export", "completion"),
)
"""Each is the module of its name."""
