"""What to use in place of options that earlier versions had, by command: the lines of removed.tsv; kept until 1.0."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.errors import UserError

ROWS = [line.split("\t") for line in Path(__file__).with_suffix(".tsv").read_text("utf-8").splitlines()]
"""Commands, an option of them, and its replacement."""
COMMANDS = ("train", "launch", "sweep", "runs", "bench", "scale", "export", "predict", "replay", "doctor")


def _of(command: str) -> dict[str, str]:
    return {name: replacement for commands, name, replacement in ROWS if command in commands.split()}


TRAIN, LAUNCH, SWEEP, RUNS, BENCH, SCALE, EXPORT, PREDICT, REPLAY, DOCTOR = map(_of, COMMANDS)
"""Those of training are also options of files for --config and of sweeps."""
LAUNCH_COMMANDS = _of("launch-command")


def error(name: str, replacement: str, what: str = "an option") -> UserError:
    """The error of an option, or something else, that is given, though it went."""
    return UserError(f"{name} is no longer {what}", replacement)
