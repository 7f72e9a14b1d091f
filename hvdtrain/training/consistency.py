"""What must hold on all ranks before the first step, and now and then after it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.config.record import to_record
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.interfaces import Group, Learner
from hvdtrain.networks.description import Weights


def checksum(weights: Weights) -> str:
    """SHA-256 over names, shapes and bits of all parameters, the first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name}{weights[name].shape}".encode())
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()[:16]


def same_options(group: Group, config: Config, fingerprint: str) -> None:
    """Raise UserError, naming the first option that differs, unless all ranks have the same options and data."""
    own = {
        **{f"--{name.replace('_', '-')}": value for name, value in to_record(config).items()},
        "data": fingerprint,
    }
    for name, values in _by_name(group.gather(own)).items():
        for rank, value in enumerate(values):
            if value != values[0]:
                raise UserError(
                    f"rank {rank} has {name} {value}, rank 0 has {values[0]}: "
                    "give every rank the same options and the same files"
                )


def _by_name(gathered: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [one.get(name) for one in gathered] for name in gathered[0]}


def same_weights(learner: Learner, when: str) -> str:
    """The checksum of all parameters. Raises TrainingError, naming rank and parameter, where ranks differ."""
    weights = learner.weights()
    sums = {name: checksum({name: value}) for name, value in weights.items()}
    for name, values in _by_name(learner.group.gather(sums)).items():
        for rank, value in enumerate(values):
            if value != values[0]:
                raise TrainingError(
                    f"{when}: parameter {name} of rank {rank} differs from rank 0's; "
                    "the ranks no longer train one network: resume from the newest checkpoint"
                )
    return checksum(weights)


def finite(weights: Weights, step: int) -> None:
    """Raise TrainingError, naming the parameter, where one is not finite.

    A loss does not tell: some frameworks' ReLU turns NaN into 0, and the loss of a broken network is a calm log(10).
    """
    for name, value in weights.items():
        if not np.isfinite(value).all():
            raise TrainingError(f"parameter {name} is not finite after step {step}; lower --lr, or clip by --clip-norm")
