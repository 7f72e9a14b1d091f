"""Commands: from a command line to an exit status."""

COMMANDS = {
    name: f"cli.{name}"
    for name in (
        *("train", "launch", "doctor", "bench", "sweep", "scale", "report"),
        *("runs", "show", "diff", "replay", "watch", "predict", "export", "completion"),
    )
}
"""The module of each command."""
