"""Weights from a file or another run with which a run begins (`--weights`)."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Learner
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints
from hvdtrain.system.start_folder import from_start
from hvdtrain.system.text import printable

PREFIXES = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before names, also several times."""
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
"""How the names of files with a state dict of PyTorch end."""
MAX_NAMES = 3
"""How many names a message lists."""


class StartingWeights(NamedTuple):
    """What was read, as far as the model has it."""

    weights: Weights
    text: str
    """Which names matched, and which did not."""
    is_complete: bool
    """Whether the model has no other names, and the file neither."""


def read(config: Config, learner: Learner) -> StartingWeights | None:
    """What --weights names, on one rank; None without the option.

    Raises UserError if it cannot be read, if the model has none of its names, or one in another shape.
    """
    if not config.weights:
        return None
    return matched(_arrays(from_start(config.weights), config), learner.weights(), config.weights)


def _arrays(path: Path, config: Config) -> Weights:
    """The arrays in a file, or in a checkpoint of a run."""
    is_pickled = path.suffix in PICKLED
    if path.is_dir() or (not os.path.lexists(path) and not path.suffix):
        return checkpoints.newest(path)[1].evaluated
    if is_pickled and config.framework != "torch":
        raise _unusable(path, f"it is a state dict of PyTorch, and --framework is {config.framework}")
    try:
        if not is_pickled and config.framework != "torch":
            return load_file(path)
        from hvdtrain.frameworks.torch.state_dicts import load_safetensors, load_state_dict

        return load_state_dict(path) if is_pickled else load_safetensors(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unusable(path, " ".join(str(error).split())[:200]) from None


def _unusable(source: Path | str, problem: str) -> UserError:
    remedy = (
        "give a .safetensors file, a state dict of PyTorch (.pt, .pth), a run, RUN/best or a checkpoint, with names "
        "and shapes of this model: only its last layer may differ"
    )
    return UserError(f"--weights {source}: {problem}", remedy, option="weights")


def _plain(name: str, known: Collection[str]) -> str:
    """The name without prefixes, unless it is known with some."""
    while name not in known and (prefix := next(filter(name.startswith, PREFIXES), "")):
        name = name.removeprefix(prefix)
    return name


def matched(given: Mapping[str, np.ndarray], current: Weights, source: str) -> StartingWeights:
    """The given arrays that the model has, by name. source: where they are from, for messages.

    The last layer may have another shape, as where a model is trained further on other classes: it then keeps its
    initial values. Raises UserError for any other layer, and if no name is the model's.
    """
    given = {_plain(name, current): array for name, array in given.items()}
    taken = {name: array for name, array in given.items() if name in current}
    last = _layer(next(reversed(current)))
    other = [name for name, array in taken.items() if not _fits(array, current[name])]
    for name in other:
        if _layer(name) != last:
            shapes = f"{taken[name].dtype}{list(taken[name].shape)} there, and {list(current[name].shape)} in the model"
            raise _unusable(source, f"{printable(name)} is {shapes}")
        del taken[name]
    if not taken:
        raise _unusable(source, f"no name fits (it has {_listed(given)}, and the model {_listed(current)})")
    missing, unexpected = current.keys() - given.keys(), given.keys() - current.keys()
    notes = [f"{len(taken)} of the model's {len(current)} arrays are from there"]
    notes += [f"{len(other)} of its last layer have another shape ({_listed(other)})"] * bool(other)
    notes += [f"{len(missing)} are not there ({_listed(missing)})"] * bool(missing)
    notes += [f"{len(unexpected)} there are not the model's ({_listed(unexpected)})"] * bool(unexpected)
    weights = {name: np.ascontiguousarray(array, current[name].dtype) for name, array in taken.items()}
    weights = {name: array.reshape(current[name].shape) for name, array in weights.items()}  # of scalars
    return StartingWeights(weights, f"--weights {source}: {'; '.join(notes)}", not (other or missing or unexpected))


def _fits(array: np.ndarray, current: np.ndarray) -> bool:
    return array.shape == current.shape and np.can_cast(array.dtype, current.dtype, "same_kind")


def _layer(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[0]


def _listed(names: Mapping[str, np.ndarray] | set[str] | list[str]) -> str:
    first = sorted(names)[:MAX_NAMES]
    more = len(names) - len(first)
    return ", ".join(printable(name[:80]) for name in first) + (f" and {more} more" if more else "")
