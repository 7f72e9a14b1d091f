"""Each pair of options and strategies of a framework, from the options themselves, as jobs that train many of them.

usage: python combinations.py FRAMEWORK, which prints all cases as JSON
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, get_args, get_type_hints

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import check_request, list_strategies
from support.covering import Row, covering_array

ROWS, BATCH = 35, 17
"""Training images, and rows of a batch: neither divides evenly, and the last batch has one row."""
FEW_STEPS = {"batch_size": BATCH, "epochs": 2, "max_steps": 4, "warmup_epochs": 0.0}
BAD_STEP = 1
"""With --on-nan skip, a row's weight is not finite at this step."""
NUMBERS: dict[str, tuple[float, ...]] = {
    "momentum": (0.9, 0.0),
    "weight_decay": (0.0, 1e-3),
    "accumulate": (1, 2, 3),
    "clip_norm": (0.0, 0.05),
    "warmup_epochs": (0.0, 1.5),
    "devices": (0, 1, 3),
    "check_sync": (0, 1),
    "profile": (0, 2),
}
"""Values of the options that are numbers; those of other options are in their types."""
FIXED = {"recipe", "framework", "strategy", "api", "kvstore", "data", "device"}
FIXED |= {"auto_resume", "elastic", "offline", "tensorboard", "quiet"}
"""Options that are no factors of their own, or do not concern strategies."""


def factors(framework: str) -> dict[str, tuple[Any, ...]]:
    """The values of each option, the default first; those of `strategy` are <strategy>/<api>/<kvstore>."""
    stores = get_args(get_type_hints(Config)["kvstore"])
    strategies = [
        f"{row.strategy}/{row.api}/{store}"
        for row in list_strategies(framework)
        for store in (stores if row.strategy == "kvstore" else ("device",))
    ]
    values: dict[str, tuple[Any, ...]] = {"strategy": tuple(strategies)}
    for options in (Config, RuntimeOptions):
        for name, kind in get_type_hints(options).items():
            found = (False, True) if kind is bool else NUMBERS.get(name, get_args(kind))
            if found and name not in FIXED and isinstance(found[0], str | bool | float | int):
                values[name] = tuple(sorted(found, key=lambda value: value != getattr(options, name)))
    return values


@dataclasses.dataclass(frozen=True)
class Case:
    """A training of a few steps.

    row: option values that are not the defaults. refused: whether the options do not work together.
    """

    framework: str
    name: str
    row: Row
    refused: bool = False

    @property
    def ranks(self) -> int:
        return 1 if self.launcher == "alone" else 2

    @property
    def launcher(self) -> str:
        strategy, _, kvstore = self.row["strategy"].split("/")
        if self.refused:  # before it knows how many ranks there are
            return "alone"
        if strategy in ("horovod", "mpi"):
            return "mpirun"
        return "local" if strategy in ("ring", "ddp", "multiworker") or kvstore.startswith("dist") else "alone"

    @property
    def job(self) -> str:
        """Cases of one job have the same processes, which a framework starts with one kind of servers or devices."""
        own = ""
        if self.refused:
            pass
        elif "dist_" in self.row["strategy"]:
            own = self.name
        elif "mirrored" in self.row["strategy"]:
            own = f"devices{self.row['devices']}"
        elif self.framework == "mxnet" and self.row.get("precision") == "bf16":  # it changes all graphs of a process
            own = "bf16"
        return f"{self.framework}-{self.launcher}{own}"


def options_of(framework: str, row: Row) -> tuple[Config, RuntimeOptions]:
    """A row as options. Raises UserError for values that cannot work."""
    given = {**FEW_STEPS, "framework": framework, "lr": 0.001 if row.get("optimizer") == "adam" else 0.02}
    own = {name: value for name, value in row.items() if name != "strategy"}
    runtime = {name: own.pop(name) for name in list(own) if hasattr(RuntimeOptions, name)}
    strategy, api, kvstore = row["strategy"].split("/")
    config = Config(**{**given, "strategy": strategy, "api": api, "kvstore": kvstore, **own})
    return config, RuntimeOptions(**{"device": "cpu", "quiet": True, **runtime})


def cases(framework: str) -> list[Case]:
    """All cases of a framework: together they have each pair of values at least once."""
    values = factors(framework)
    default = next(name for name in values["strategy"] if name.startswith("horovod"))

    def refused(row: Row) -> bool:
        try:
            check_request(*options_of(framework, row))
        except UserError:
            return True
        return False

    def allowed(row: Row) -> bool:
        choices = [row["strategy"]] if "strategy" in row else values["strategy"]
        return not all(refused({**row, "strategy": strategy}) for strategy in choices)

    rows, bad = covering_array(values, allowed)
    bad = [{"strategy": default, **row} for row in bad]
    return [Case(framework, f"{i:03d}", row) for i, row in enumerate(rows)] + [
        Case(framework, f"refused-{i:03d}", row, True) for i, row in enumerate(bad)
    ]


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(case) for case in cases(sys.argv[1])]))
