"""What decides the bits of a run besides options and data: recorded, compared between ranks and at a resume.

The record is JSON: `shards`, `threads`, `instruction_set`, `vendor` of the processor, `device`, `variables` by which
libraries choose kernels, `versions`, and, as information, the `processor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.frameworks.arithmetic import threads
from hvdtrain.interfaces.learner import Checkpoint, Learner
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log
from hvdtrain.system import arithmetic, rank_info, stacks
from hvdtrain.system.text import printable
from hvdtrain.training.consistency import differences

ELSEWHERE = ("shards", "processor", "versions")
"""Parts of the record that config.json has in other tables."""


class Fact(NamedTuple):
    """A value of which a difference is an error. title: what it is, in a message. option: the one that sets it."""

    title: str
    remedy: str
    option: str = ""


FACTS = {
    "threads": Fact(
        "the number of threads", "give the same --threads, and start hvdtrain before the framework", "threads"
    ),
    "instruction_set": Fact("the instruction set", "hold it at one that all hosts have, as by --isa avx2", "isa"),
    "vendor": Fact("the processor's vendor", "use hosts with processors of one vendor"),
    "device": Fact("the kind of device", "use devices of one kind, or --device cpu", "device"),
    "libc": Fact("the C library", "use the same container image or system"),
}
VARIABLE = Fact("the variable", "set it to the same value or not at all; --isa sets those of instruction sets", "isa")
VERSION = Fact("the version of", "install the same versions")


def record(config: Config, learner: Learner) -> dict[str, Any]:
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


def check_same_on_ranks(group: Group, local: dict[str, Any]) -> None:
    """Raise UserError, on all ranks, naming hosts and values of the first difference between the ranks' records."""
    hosts = group.gather(rank_info.host_name())
    for name, rank, value, expected in differences(group, dict(_values(local))):
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
    for name, was, now in _changed(saved.arithmetic, local):
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
    return [f"{_fact(name)[1]} is {_shown(now)} and was {_shown(was)}" for name, was, now in _changed(recorded, local)]


def _changed(recorded: dict[str, Any], local: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The names of `_values` that differ, with the recorded value and that of this rank."""
    theirs, ours = dict(_values(recorded)), dict(_values(local))
    for name in theirs | ours:
        if theirs.get(name) != ours.get(name):
            yield name, theirs.get(name), ours.get(name)


def _values(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of a record that are compared, with names such as `threads` and `versions.numpy`."""
    yield from ((name, record.get(name)) for name in FACTS)
    variables: dict[str, str] = record.get("variables", {})
    yield from ((f"variables.{name}", variables.get(name)) for name in arithmetic.DECIDING)
    versions: dict[str, str] = record.get("versions", {})
    yield from ((f"versions.{name}", value) for name, value in sorted(versions.items()))


def _fact(name: str) -> tuple[Fact, str]:
    """What is known of a value of `_values`, and what a message calls it."""
    kind, _, item = name.partition(".")
    if not item:
        return FACTS[kind], FACTS[kind].title
    fact = VARIABLE if kind == "variables" else VERSION
    return fact, f"{fact.title} {item}"


def _shown(value: Any) -> str:
    return printable(f"{value!s:.80}") if value not in (None, "") else "none"
