"""Checks that all ranks train the same network on the same data with the same bits, and that parameters are finite.

What decides the bits of a run besides options and data is recorded, and compared between ranks and at a resume. The
record is JSON: `shards`, `threads`, `instruction_set`, `vendor` of the processor, `device`, `variables` by which
libraries choose kernels, `versions`, and, as information, the `processor`.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.errors import NotFiniteError, TrainingError, UserError
from hvdtrain.frameworks.arithmetic import threads
from hvdtrain.interfaces.learner import Checkpoint, Learner
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights
from hvdtrain.runs.console import log
from hvdtrain.system import arithmetic, rank_info, stacks
from hvdtrain.system.text import printable, to_json

OPTIMIZER = "the optimizer's "
"""Begins the names of `Learner.settings` among the values that all ranks share."""
ORDER = f"{OPTIMIZER}parameters in the order"
"""Names `Learner.optimizer_order` there."""


def checksum(weights: Weights) -> str:
    """SHA-256 over names, shapes and bits of all parameters: its first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name}{weights[name].shape}".encode())
        digest.update(np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def settings(learner: Learner) -> dict[str, Any]:
    """The optimizer's settings, by names for messages, as texts: for other ranks may send JSON only."""
    return {f"{OPTIMIZER}{name}": str(value) for name, value in learner.settings().items()}


def digest(values: Any) -> str:
    """SHA-256 of JSON values: its first 16 hexadecimal digits."""
    return hashlib.sha256(to_json(values).encode()).hexdigest()[:16]


def check_same_options(group: Group, local: dict[str, Any], when: str = "") -> None:
    """Raise UserError, naming the first that differs, unless all ranks have the same `RunContext.shared_values`.

    when: begins the message.
    """
    for name, rank, value, expected in differences(group.gather(local)):
        remedy = "give every rank the same options and files"
        if name == "data":
            remedy = "give every rank the same rows in the same order, and seed what is random in them"
        if name.startswith(OPTIMIZER):
            remedy = "set the same on every rank, for example by the number of the step or by scores of all ranks"
        if name == ORDER:
            remedy = "make the optimizer from a list, such as model.parameters(): a set has another order on each rank"
        raise UserError(f"{when}rank {rank} has {name} {value}, rank 0 has {expected}", remedy, rank=rank)


def check_same_weights(
    group: Group,
    weights: Weights,
    when: str,
    since: int | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The checksum of `weights`. Raises TrainingError, naming rank and parameter, where ranks differ.

    when: the moment of the check, for the message. since: the last step after which no rank differed. settings: from
    `settings`; raises UserError where they differ as well, as they are the cause.
    """
    parameters = checksum(weights)
    by_rank = group.gather(parameters)
    usual = by_rank.index(statistics.mode(by_rank))  # rank 0, unless more ranks have others
    wrong = next((rank for rank, its in enumerate(by_rank) if its != by_rank[usual]), None)
    if wrong is None:
        return parameters
    check_same_options(group, dict(settings), f"{when}: ")
    of_ranks = group.gather({name: checksum({name: value}) for name, value in weights.items()})
    name = next(name for name, its in of_ranks[wrong].items() if its != of_ranks[usual].get(name))
    rank, of_others = group.ranks[wrong], "the others'" if usual else "rank 0's"
    before = "" if since is None else f"; after step {since} they were identical"
    raise TrainingError(
        f"{when}: parameter {name} of rank {rank} differs from {of_others}, so the ranks train different networks"
        + before,
        "test the memory and processor of its host, unless the model changes weights by its rows; --check-sync 1 finds "
        "the step, if it happens again",
        rank=rank,
    )


def differences(by_rank: Sequence[dict[str, Any]]) -> Iterator[tuple[str, int, Any, Any]]:
    """What differs between the ranks' values, by names and then by ranks: name, rank, its value, and that of rank 0."""
    for name in dict.fromkeys(itertools.chain.from_iterable(by_rank)):
        for rank, values in enumerate(by_rank):
            if values.get(name) != by_rank[0].get(name):
                yield name, rank, values.get(name), by_rank[0].get(name)


def not_finite(weights: Weights) -> dict[str, np.ndarray]:
    """Where weights are not finite: bool, in their shapes, of those that have such values."""
    places = ((name, ~np.isfinite(value)) for name, value in weights.items())
    return {name: place for name, place in places if place.any()}


def check_finite(
    weights: Weights, step: int, buffers: frozenset[str] = frozenset(), at_first: Mapping[str, np.ndarray] | None = None
) -> None:
    """Raise NotFiniteError, naming the parameter, where one is not finite after `step` steps.

    buffers: names of those that may become infinite, as masks are, but not NaN. at_first: where weights were not finite
    before the first step, from `not_finite`: they may stay so.

    The loss alone does not show it: some frameworks' ReLU turns NaN into 0, and the loss of a network full of NaN is
    then log(10), that of a network which has learned nothing.
    """
    for name, value in weights.items():
        wrong = np.isnan(value) if name in buffers else ~np.isfinite(value)
        if wrong.any() and (wrong & ~(at_first or {}).get(name, np.False_)).any():
            raise NotFiniteError(
                f"parameter {name} is not finite after step {step}",
                "lower the learning rate, or clip gradients with --clip-norm",
                step=step,
            )


ELSEWHERE = ("shards", "processor", "versions")
"""Parts of the record that config.json has in other tables."""


class BitFact(NamedTuple):
    """A value of which a difference is an error. title: what it is, in a message. option: the one that sets it."""

    title: str
    remedy: str
    option: str = ""


VARIABLES, VERSIONS = "variables", "versions"
BIT_FACTS = {
    "threads": BitFact(
        "the number of threads", "give the same --threads, and start hvdtrain before the framework", "threads"
    ),
    "instruction_set": BitFact("the instruction set", "hold it at one that all hosts have, as by --isa avx2", "isa"),
    "vendor": BitFact("the processor's vendor", "use hosts with processors of one vendor"),
    "device": BitFact("the kind of device", "use devices of one kind, or --device cpu", "device"),
    "libc": BitFact("the C library", "use the same container image or system"),
    VARIABLES: BitFact(
        "the variable", "set it to the same value or not at all; --isa sets those of instruction sets", "isa"
    ),
    VERSIONS: BitFact("the version of", "install the same versions"),
}


def arithmetic_record(config: Config, learner: Learner) -> dict[str, Any]:
    """What decides the bits on this rank, as JSON values."""
    processor = arithmetic.processor()
    return {
        "shards": config.shards,
        "threads": threads(config.framework),
        "instruction_set": arithmetic.instruction_set(config.isa),
        "vendor": processor.vendor,
        "device": arithmetic.device_model(learner.device),
        "libc": arithmetic.libc(),
        "variables": arithmetic.variables(),
        "processor": processor.model,
        "versions": stacks.deciding_versions(config.framework),
    }


def check_same_arithmetic(group: Group, local: dict[str, Any]) -> None:
    """Raise UserError, on all ranks, naming hosts and values of the first difference between the ranks' records."""
    hosts = group.gather(rank_info.host_name())
    for name, rank, value, expected in differences(group.gather(_values(local))):
        fact, title = _fact(name)
        raise UserError(
            f"{title} of rank {rank} on {hosts[rank]} is {_shown(value)}, and of rank 0 on {hosts[0]} "
            f"{_shown(expected)}, so their bits would differ",
            f"{fact.remedy}, or train without --shards",
            option=fact.option,
            rank=rank,
        )


def warn_of_processors(group: Group, local: dict[str, Any]) -> None:
    """Log that ranks have different processors, from whose caches libraries may choose the sizes of blocks."""
    models = sorted(set(group.gather(local["processor"])))
    if len(models) > 1:
        log.warning("ranks have different processors (%s), whose caches may decide bits", ", ".join(models))


def check_resumed(config: Config, local: dict[str, Any], path: Path, saved: Checkpoint) -> None:
    """Raise UserError if a run would continue with other bits than without an interruption, which --shards excludes.

    With other --shards, or in another framework, that is what the user asks for: it is logged.
    """
    shards = saved.arithmetic.get("shards", 0)
    if not (shards or config.shards):
        return
    if shards != config.shards or saved.framework != config.framework:
        was = f"--shards {shards} in {saved.framework}" if shards else "no --shards"
        log.warning("%s was trained with %s: the bits will not be those of an undisturbed run", path, was)
        return
    for name, _, now, was in differences([_values(saved.arithmetic), _values(local)]):
        fact, title = _fact(name)
        raise UserError(
            f"--resume {path}: {title} is {_shown(now)} on {rank_info.host_name()} and was {_shown(was)}, so the bits "
            "would not be those of an undisturbed run",
            f"{fact.remedy}, equal to those of the run, or give up the same bits by --shards 0",
            option=fact.option,
        )
    before, here = saved.arithmetic.get("processor"), local["processor"]
    if before != here:
        log.warning(
            "%s was trained on %s, and continues on %s, whose caches may decide bits", path, _shown(before), here
        )


def changes(recorded: dict[str, Any], local: dict[str, Any]) -> list[str]:
    """What has another value here than in a record, in texts for a message."""
    changed = differences([_values(recorded), _values(local)])
    return [f"{_fact(name)[1]} is {_shown(now)} and was {_shown(was)}" for name, _, now, was in changed]


def _values(record: dict[str, Any]) -> dict[str, Any]:
    """The values of a record that are compared, by names such as `threads` and `versions.numpy`."""
    variables, versions = record.get(VARIABLES, {}), record.get(VERSIONS, {})
    return {
        **{name: record.get(name) for name in BIT_FACTS if name not in (VARIABLES, VERSIONS)},
        **{f"{VARIABLES}.{name}": variables.get(name) for name in arithmetic.DECIDING},
        **{f"{VERSIONS}.{name}": version for name, version in sorted(versions.items())},
    }


def _fact(name: str) -> tuple[BitFact, str]:
    """What is known of a value of `_values`, and what a message calls it."""
    kind, _, item = name.partition(".")
    return BIT_FACTS[kind], f"{BIT_FACTS[kind].title} {item}".rstrip()


def _shown(value: Any) -> str:
    return printable(f"{value!s:.80}") if value not in (None, "") else "none"
