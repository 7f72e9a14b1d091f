"""Options as JSON, and back; the options of a recorded run."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network
from hvdtrain.networks.record import from_record as from_network_record
from hvdtrain.system.files import read_json

REMEDY = "give a folder under runs/, or one of its checkpoints"


def recorded(path: Path) -> Config:
    """The options of the run at `path`, its folder or a checkpoint in it. Raises UserError if they are not readable."""
    try:
        return from_record(read_json(run_folder(path) / "config.json")["config"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"--resume {path}: no valid config.json of a run there ({error})",
            REMEDY,
        ) from None


def recorded_network(path: Path, model: str) -> Network:
    """The network of the run at `path`, which `recorded` could read. Raises UserError if its record has none."""
    try:
        return from_network_record(read_json(run_folder(path) / "config.json")["network"]["description"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"--resume {path}: no valid network {model} in its config.json ({error})", REMEDY) from None


def run_folder(path: Path) -> Path:
    """The folder of the run at `path`, which is that folder or a checkpoint in it."""
    return path if os.path.isfile(path / "config.json") else path.parent.parent


def from_record(record: dict[str, Any]) -> Config:
    """A Config from its JSON form. Raises TypeError for names or values that are unknown to this version.

    Raises UserError for values that cannot work.
    """
    for name, kind in get_type_hints(Config).items():
        if name in record and not _has_type(record[name], kind):
            raise TypeError(f"{name} is {record[name]!r:.80}")
    return Config(**record)


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a JSON value is valid for an option of this type; a float may be written as an integer."""
    if get_origin(kind) in (Union, UnionType):
        return any(_has_type(value, one) for one in get_args(kind))
    if get_args(kind):
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int and abs(value) < 1 << 53)


def to_record(options: Config | RuntimeOptions) -> dict[str, Any]:
    """Options as JSON values, by name."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(options).items()
    }
