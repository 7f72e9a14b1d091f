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


def run_folder(path: Path) -> Path:
    """The folder of the run at `path`, which is that folder or a checkpoint in it."""
    return path if os.path.isfile(path / "config.json") else path.parent.parent


def check_recorded(folder: Path, expected: dict[str, Any]) -> None:
    """Raise UserError if the run in `folder` was run with other options.

    expected: those to compare, as JSON values by name, of both kinds. Options that the record lacks are not compared.
    """
    try:
        record = read_json(folder / "config.json")
        found = {**record["config"], **record.get("runtime", {})}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = "remove the folder, or give another --output"
        raise UserError(f"{folder}: no valid config.json of a run there ({error})", remedy) from None
    for name, value in expected.items():
        if found.get(name, value) != value:
            reason = f"{folder} was run with --{name.replace('_', '-')} {found[name]}, not {value}"
            raise UserError(reason, "give another --output")


def from_record(record: dict[str, Any]) -> Config:
    """A Config from its JSON form. Raises TypeError for names or values that are unknown to this version.

    Raises UserError for values that cannot work.
    """
    if not isinstance(record, dict):
        raise TypeError(f"the options are {record!r:.80}")
    for name, kind in get_type_hints(Config).items():
        if name in record and not has_type(record[name], kind):
            raise TypeError(f"{name} is {record[name]!r:.80}")
    values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in record.items()}
    return Config(**values)


def has_type(value: Any, kind: Any) -> bool:
    """Whether a JSON value is valid for an option of this type; a float may be written as an integer."""
    if get_origin(kind) in (Union, UnionType):
        return any(has_type(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(type(one) is str for one in value)
    if get_args(kind):
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int and abs(value) < 1 << 53)


def to_record(options: Config | RuntimeOptions) -> dict[str, Any]:
    """Options as JSON values, by name."""
    return as_json(dataclasses.asdict(options))


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """The values with paths as texts and tuples as lists, as JSON has them."""
    return {name: _as_json(value) for name, value in values.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
