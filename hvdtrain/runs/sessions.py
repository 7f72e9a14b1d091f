"""The sessions of a run: a resumed run has several, each with a config.json of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.option import facts
from hvdtrain.config.options import AUTO_RESUME, Config
from hvdtrain.runs.records import RunConfig, read, seconds_of

CONFIG = re.compile(r"config(-\d{1,6})?\.json")
SAME_STEPS = {"max_steps", *(name for name, about in facts(Config).items() if about.only_distributes)} - {"framework"}
"""Options that may differ in a run that trains the same steps."""


class Session(NamedTuple):
    """A process's part of a run: when it started, in seconds since 1970, and its config.json."""

    started: float
    record: RunConfig

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide the bits, as JSON values."""
        return {name: value for name, value in self.record.options.items() if name not in SAME_STEPS}


def sessions(folder: Path) -> list[Session]:
    """The sessions of a run, in their order; without those whose record is damaged."""
    records = [read(path, RunConfig) for path in folder.glob("config*.json") if CONFIG.fullmatch(path.name)]
    known = [Session(time, record) for record in records if (time := seconds_of(record.started)) is not None]
    return sorted((one for one in known if one.record.options), key=lambda session: session.started)


def resumed_from(known: list[Session]) -> str:
    """The run or checkpoint that the first session continued; empty if it began with initial weights."""
    path = known[0].record.text("resume")
    return "" if Path(path) == AUTO_RESUME else path
