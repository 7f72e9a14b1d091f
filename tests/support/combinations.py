"""Each pair of options and strategies of a framework, from the options themselves, as cases of few jobs.

usage: python combinations.py FRAMEWORK, which prints the cases as JSON; it imports the framework
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.rules import OVER_HOROVOD
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import check_request, list_strategies
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.registry import find_network
from hvdtrain.tasks.target import NetworkTarget
from support import mixed_networks
from support.networks import shaped
from support.shared_runs import STARTS_ONCE

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]
REFERENCES = "references"
"""The job that trains the references of all cases."""
SHAKEN = "shaken"
"""The job that trains them again and again, from weights that differ by less than what sums round."""
NUMBERS: dict[str, tuple[float | str, ...]] = {
    "model": ("lenet", "cifar_lenet", f"{mixed_networks.__file__}:WITHOUT_NORM"),
    "momentum": (0.9, 0.0),
    "betas": ("0.9:0.999", "0.8:0.99"),
    "schedule": ("constant", "step", "cosine", "polynomial", "onecycle"),
    "epsilon": (1e-8, 1e-6),
    "weight_decay": (0.0, 1e-3),
    "no_decay": ((), ("*.bias",)),
    "accumulate": (1, 2, 3),
    "clip_norm": (0.0, 0.05),
    "ema": (0.0, 0.5),
    "compression": ("none", "fp16", "bf16", "int8", "powersgd:1"),
    "groups": ("auto", 1, 3),
    "sync_every": (1, 2),
    "shards": (0, 3),
    "warmup_epochs": (0.0, 1.5),
    "devices": (0, 1, 3),
    "check_sync": (0, 1),
    "audit": (0, 1),
}
"""Values of options that are numbers or any text; those of other options are in their types."""
FIXED = {"recipe", "framework", "strategy", "data", "device"}
FIXED |= {"resume", "quiet", "compile", "bind", "arg", "on_bad_row", "checkpoint_every"}
FIXED |= {"threads", "isa", "image_size", "workers", "tracker", "on_end", "balance"}
FIXED |= {"on_wrong_bits", "freeze"}
"""Options that are not factors of their own, or do not concern strategies."""
FEW_STEPS = {"seed": 1, "batch_size": 17, "epochs": 2, "max_steps": 4, "warmup_epochs": 0.0}
"""Four steps with the end of an epoch, in batches that no number of ranks or devices divides evenly."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A training of a few steps.

    row: values of options. refused: whether they do not work together.
    """

    framework: str
    name: str
    row: Row
    refused: bool = False

    @property
    def id(self) -> str:
        return f"{self.framework}-{self.name}"

    @property
    def launcher(self) -> str:
        """One of `support.jobs.launcher`. What is refused is refused before a strategy looks for its ranks."""
        strategy = self.row["strategy"]
        if self.refused:
            return "alone"
        if strategy in (*OVER_HOROVOD, "mpi"):
            return "mpirun"
        return "local" if strategy == "ring" or STARTS_ONCE.fullmatch(strategy) else "alone"

    @property
    def ranks(self) -> int:
        return 1 if self.launcher == "alone" else 2

    @property
    def job(self) -> str:
        """Cases of one job share their processes, in which a framework starts servers and devices only once."""
        if self.refused:  # before it starts or sets anything in its process
            return f"{self.framework}-alone-"
        own = ""
        if "kvstore-dist" in self.row["strategy"]:
            own = self.name
        elif "mirrored" in self.row["strategy"]:
            own = f"devices{self.row['devices']}"
        elif "multiworker" in self.row["strategy"]:  # it configures TensorFlow before that starts
            own = "multiworker"
        elif self.framework == "mxnet" and self.row["precision"] == "bf16":  # it changes all graphs of a process
            own = "bf16"
        return f"{self.framework}-{self.launcher}-{own}"


def factors(framework: str) -> dict[str, tuple[Any, ...]]:
    """The values of each option, the default first."""
    values: dict[str, tuple[Any, ...]] = {"strategy": tuple(row.strategy for row in list_strategies(framework))}
    for options in (Config, RuntimeOptions):
        for name, kind in get_type_hints(options).items():
            choices = NUMBERS.get(name) or ((False, True) if kind is bool else get_args(kind))
            if choices and name not in FIXED:
                default = getattr(options, name)
                values[name] = tuple(sorted(choices, key=lambda value: value != default))
    return values


def options_of(case: Case) -> tuple[Config, RuntimeOptions]:
    """The options of a case. Raises UserError for values that cannot work."""
    row = dict(case.row)
    runtime = {name: row.pop(name) for name in list(row) if hasattr(RuntimeOptions, name)}
    lr = 0.001 if row.get("optimizer", "sgd") != "sgd" else 0.02
    given = {"framework": case.framework, "lr": lr}
    return Config(**{**FEW_STEPS, **given, **row}), RuntimeOptions(device="cpu", quiet=True, **runtime)


def network_of(row: Row) -> ShapedNetwork:
    """The network of a case, on synthetic images."""
    return shaped(find_network(row.get("model", Config.model)))


def all_cases(framework: str) -> list[Case]:
    """Cases that have each pair of values at least once."""
    values = factors(framework)

    def works(row: Row) -> bool:
        try:
            config, runtime = options_of(Case(framework, "", row))
            check_request(config, NetworkTarget(network_of(row)), runtime)
        except UserError:
            return False
        return True

    def allowed(row: Row) -> bool:
        choices = [row["strategy"]] if "strategy" in row else values["strategy"]
        return any(works({**row, "strategy": strategy}) for strategy in choices)

    rows, refused = covering_array(values, allowed)
    trained = [Case(framework, f"{i:03d}", row) for i, row in enumerate(rows)]
    return trained + [
        Case(framework, f"refused-{i:03d}", {"strategy": Config.strategy, **row}, True) for i, row in enumerate(refused)
    ]


# Pairwise covering arrays: few rows in which each pair of values of two factors occurs in one of them.


def pairs(row: Row) -> set[Pair]:
    """All pairs of values in a row."""
    return set(itertools.combinations(sorted(row.items()), 2))


def covering_array(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool]) -> tuple[list[Row], list[Row]]:
    """Rows that cover all pairs that are allowed, and one row of each pair that is not; the same in every call.

    factors: the values of each factor, hashable; the first is its default. allowed: whether a row, of which some
    factors may be missing and have their default, can be used.
    """
    left, refused = [], []
    for (a, values), (b, others) in itertools.combinations(sorted(factors.items()), 2):
        for one, other in itertools.product(values, others):
            row = {a: one, b: other}
            (left if allowed(row) else refused).append(row)
    uncovered = {pair for row in left for pair in pairs(row)}
    rows = []
    for first in left:
        if pairs(first) & uncovered:
            rows.append(_complete(first, factors, allowed, uncovered))
            uncovered -= pairs(rows[-1])
    return rows, refused


def _complete(
    first: Row, factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], uncovered: set[Pair]
) -> Row:
    """The row, and of each other factor the allowed value that covers most pairs, the default if none does."""
    row = dict(first)
    for name, values in factors.items():
        if name not in row:
            candidates = [value for value in values if allowed({**row, name: value})]
            row[name] = max(candidates, key=lambda value: len(pairs({**row, name: value}) & uncovered))
    return row


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(case) for case in all_cases(sys.argv[1])]))
