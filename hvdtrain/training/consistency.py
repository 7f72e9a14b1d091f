"""Checks that all ranks train the same network on the same data, and that its parameters are finite."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hvdtrain.collectives.surviving import ranks_of
from hvdtrain.config.option import key
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import FACTS, to_record
from hvdtrain.errors import NotFiniteError, TrainingError, UserError
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights
from hvdtrain.system.text import to_json
from hvdtrain.tasks.target import Target


def checksum(weights: Weights) -> str:
    """SHA-256 over names, shapes and bits of all parameters: its first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name}{weights[name].shape}".encode())
        digest.update(np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def check_same_options(group: Group, config: Config, runtime: RuntimeOptions, target: Target, fingerprint: str) -> None:
    """Raise UserError, naming the first option that differs, unless all ranks have the same options and files.

    Those that say so of themselves may differ.
    """
    for name, rank, value, expected in differences(group, shared_values(config, runtime, target, fingerprint)):
        remedy = "give every rank the same options and files"
        if name == "data":
            remedy = "give every rank the same rows in the same order, and seed what is random in them"
        raise UserError(f"rank {rank} has {name} {value}, rank 0 has {expected}", remedy, rank=rank)


def shared_values(config: Config, runtime: RuntimeOptions, target: Target, fingerprint: str) -> dict[str, Any]:
    """What must be the same on all ranks, as JSON values by names for messages."""
    recorded = {**to_record(config), **to_record(runtime)}
    options = {f"--{key(name)}": value for name, value in recorded.items() if not FACTS[name].per_rank}
    layers = hashlib.sha256(to_json(target.record()).encode()).hexdigest()[:16]
    return {**options, "layers": layers, "data": fingerprint}


def check_same_weights(group: Group, weights: Weights, when: str, since: int | None = None) -> str:
    """The checksum of `weights`. Raises TrainingError, naming rank and parameter, where ranks differ.

    when: the moment of the check, for the message. since: the last step after which no rank differed.
    """
    parameters = checksum(weights)
    by_rank = group.gather(parameters)
    usual = by_rank.index(statistics.mode(by_rank))  # rank 0, unless more ranks have others
    wrong = next((rank for rank, its in enumerate(by_rank) if its != by_rank[usual]), None)
    if wrong is None:
        return parameters
    of_ranks = group.gather({name: checksum({name: value}) for name, value in weights.items()})
    name = next(name for name, its in of_ranks[wrong].items() if its != of_ranks[usual].get(name))
    rank, of_others = ranks_of(group)[wrong], "the others'" if usual else "rank 0's"
    before = "" if since is None else f"; after step {since} they were identical"
    raise TrainingError(
        f"{when}: parameter {name} of rank {rank} differs from {of_others}, so the ranks train different networks"
        + before,
        "test the memory and processor of its host, unless the model changes weights by its rows; --check-sync 1 finds "
        "the step, if it happens again",
        rank=rank,
    )


def differences(group: Group, local_values: dict[str, Any]) -> Iterator[tuple[str, int, Any, Any]]:
    """What differs between the ranks' values: in the order of rank 0's names and then of ranks.

    Each is a name, a rank, its value, and that of rank 0.
    """
    gathered = group.gather(local_values)
    for name, expected in gathered[0].items():
        for rank, values in enumerate(gathered):
            if values.get(name) != expected:
                yield name, rank, values.get(name), expected


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
