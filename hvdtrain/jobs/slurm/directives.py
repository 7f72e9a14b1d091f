"""What the user adds to the #SBATCH lines of a batch script: any option of sbatch, the tasks of an array, and mail.

Nothing here may end its line, or contradict a line that the script has already.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from hvdtrain.errors import UserError

IN_COMMAND_LINE = "leave it out: it is an option of the command sbatch, not of a job"
RANKS = "give --nodes and --ranks-per-node"
OWN = {
    "account": "give --account",
    "array": "give --array",
    "chdir": "start the launcher in that folder: the script changes to it",
    "cpus-per-task": "give --cpus-per-rank",
    "export": "give --env NAME or --env NAME=VALUE",
    "export-file": "give --env NAME or --env NAME=VALUE",
    "gpus-per-node": "give --gpus-per-node",
    "job-name": "give --job-name",
    "mail-type": "give --mail-type",
    "mail-user": "give --mail-user",
    "mem": "give --mem",
    "no-requeue": "give --no-requeue",
    "nodes": RANKS,
    "ntasks": RANKS,
    "ntasks-per-node": RANKS,
    "open-mode": "leave it out: a job that is queued again appends to its log file, and others begin a new one",
    "output": "leave it out: launch status knows the log file by its name, and --output-dir writes one for each rank",
    "partition": "give --partition",
    "requeue": "leave it out: it is the default, and --no-requeue turns it off",
    "signal": "give --signal-before",
    "tasks-per-node": RANKS,
    "time": "give --time",
    **dict.fromkeys(
        ("help", "ignore-pbs", "parsable", "quiet", "test-only", "usage", "verbose", "version", "wait"),
        IN_COMMAND_LINE,
    ),
    "wrap": "write the program after --",
}
"""Options of sbatch that the script sets, or that do not belong into one, and what to do instead."""
SHORT = {
    **{"A": "account", "a": "array", "D": "chdir", "c": "cpus-per-task", "J": "job-name", "N": "nodes", "n": "ntasks"},
    **{"o": "output", "p": "partition", "t": "time", "h": "help", "Q": "quiet", "v": "verbose", "V": "version"},
    "W": "wait",
}
"""Their short forms."""
NOT_ABBREVIATIONS = ("gpus",)
"""Options of their own, although the names of others begin with them: sbatch accepts any clear beginning of a name."""
FLAGS = "HkOsI"
"""Short options without a value."""
WITH_VALUE = "BCFGLMSbdeimqwx"
LONG = re.compile(r"--([A-Za-z][A-Za-z0-9-]*)(?:=(.*))?", re.DOTALL)
PLAIN = re.compile(r"[A-Za-z0-9_.,:+@=%/~^*!&|()\[\]-]*")
"""Words that sbatch reads as they are; others are quoted."""

MAIL_TYPES = ("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT",
              "TIME_LIMIT_50", "TIME_LIMIT_80", "TIME_LIMIT_90", "ARRAY_TASKS")  # fmt: skip
MAIL_TYPE = "END,FAIL"
"""The default where there is a --mail-user."""
LARGEST_INDEX = 4_000_000
"""Slurm's limit of MaxArraySize."""


def extra(given: list[str]) -> list[str]:
    """The #SBATCH lines of --sbatch, without `#SBATCH`. Raises UserError for what a line cannot hold."""
    return [_line(option) for option in given]


def _line(given: str) -> str:
    where = f"--sbatch {given!r:.100}"
    try:
        words = shlex.split(given) if given.isprintable() else []
    except ValueError:
        words = []
    if not 1 <= len(words) <= 2:
        raise UserError(f"{where} is not one option of sbatch", 'write one after each --sbatch: --sbatch "--qos=high"')
    option, *values = words
    if not option.startswith("-") or option == "-":
        raise UserError(f"{where}: {option!r:.100} is not an option", 'write --sbatch "--qos=high"')
    line = _long(where, option, values) if option.startswith("--") else _short(where, option, values)
    return " ".join(_quoted(word) for word in line)


def _long(where: str, option: str, values: list[str]) -> list[str]:
    match = LONG.fullmatch(option)
    if not match or (values and match[2] is not None):
        raise UserError(f"{where} is not one option of sbatch", 'write it as --sbatch "--NAME=VALUE"')
    _refuse_own(where, match[1])
    # One word, so that a value is never read as an option or as the program.
    return [f"{option}={values[0]}" if values else option]


def _short(where: str, option: str, values: list[str]) -> list[str]:
    name, value = option[1], option[2:]
    if name in SHORT:
        _refuse_own(where, SHORT[name])
    if name in FLAGS and not value and not values:
        return [option]
    if name in WITH_VALUE and bool(value) != bool(values):
        return [f"-{name}", value or values[0]]
    raise UserError(f"{where} is not one option of sbatch", 'write its long form: --sbatch "--qos=high"')


def _refuse_own(where: str, name: str) -> None:
    meant = [option for option in OWN if option == name or (option.startswith(name) and name not in NOT_ABBREVIATIONS)]
    if meant:
        option = name if name in OWN else meant[0]
        raise UserError(f"{where}: the launcher decides --{option} of the batch script", OWN[option])


def _quoted(word: str) -> str:
    """A word as sbatch reads it in a script, where # begins a comment."""
    if PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ArrayTasks(NamedTuple):
    """The tasks of an array: `0-9%2`."""

    text: str
    """As sbatch takes it."""
    indexes: tuple[tuple[int, int, int], ...]
    """First, last and step of each range."""

    @property
    def last(self) -> int:
        """The highest index."""
        return max(last for _, last, _ in self.indexes)

    def has(self, index: int) -> bool:
        """Whether there is a task of this number."""
        return any(first <= index <= last and (index - first) % step == 0 for first, last, step in self.indexes)


def array_tasks(text: str) -> ArrayTasks:
    """The tasks of --array. Raises UserError for what sbatch would not accept."""
    where, remedy = f"--array {text!r:.100}", "write 0-9, 0-9%2 for two at a time, 0-8:2, or 1,3,5"
    ranges, percent, limit = text.partition("%")
    parts = [re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?", part) for part in ranges.split(",")]
    if not all(parts) or (percent and not re.fullmatch(r"[1-9][0-9]{0,6}", limit)):
        raise UserError(f"{where} is not a list of tasks", remedy)
    indexes = tuple((int(part[1]), int(part[2] or part[1]), int(part[3] or 1)) for part in parts if part)
    if any(first > last or step < 1 or last > LARGEST_INDEX for first, last, step in indexes):
        raise UserError(f"{where} has a range without tasks, or an index above {LARGEST_INDEX}", remedy)
    return ArrayTasks(text, indexes)


def mail_type(user: str, given: str) -> str:
    """The value of --mail-type; empty where no mail is asked for. Raises UserError for a type that Slurm lacks."""
    types = (given or (MAIL_TYPE if user else "")).upper()
    unknown = [event for event in types.split(",") if event not in MAIL_TYPES] if types else []
    if unknown:
        raise UserError(f"--mail-type {given!r:.100}: {unknown[0]!r:.40} is no event", f"give {', '.join(MAIL_TYPES)}")
    return types
