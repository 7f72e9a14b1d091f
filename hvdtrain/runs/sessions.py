"""The sessions of a run: a resumed run has several, each with a config.json of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hvdtrain.config.option import facts
from hvdtrain.config.options import AUTO_RESUME, Config
from hvdtrain.runs.records import RunConfig, read

CONFIG = re.compile(r"config(-\d{1,6})?\.json")
SAME_STEPS = {"max_steps", *(name for name, about in facts(Config).items() if about.only_distributes)} - {"framework"}
"""Options that may differ in a run that trains the same steps."""


def sessions(folder: Path) -> list[RunConfig]:
    """The config.json of each session of a run, in their order; without those that are damaged."""
    records = [read(path, RunConfig) for path in folder.glob("config*.json") if CONFIG.fullmatch(path.name)]
    return sorted((one for one in records if one.options and one.began), key=lambda record: record.began)


def deciding_options(record: RunConfig) -> dict[str, Any]:
    """The options that decide the bits, as JSON values."""
    return {name: value for name, value in record.options.items() if name not in SAME_STEPS}


def resumed_from(known: list[RunConfig]) -> str:
    """The run or checkpoint that the first session continued; empty if it began with initial weights."""
    path = known[0].text("resume")
    return "" if Path(path) == AUTO_RESUME else path
