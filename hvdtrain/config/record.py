"""Options as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError


def recorded(path: Path) -> Config:
    """The options of the run that `path` (a run's folder, or a checkpoint in it) belongs to."""
    folder = path if os.path.isfile(path / "config.json") else path.parent.parent
    try:
        return from_record(json.loads((folder / "config.json").read_text())["config"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"--resume {path}: no readable config.json of a run there ({error}); "
            "give a folder under runs/ or one of its checkpoints"
        ) from None


def from_record(record: dict[str, Any]) -> Config:
    """A Config from its JSON form. Raises TypeError for names or values that this version does not know."""
    for name, kind in get_type_hints(Config).items():
        if name in record and not _is(record[name], kind):
            raise TypeError(f"{name} is {record[name]!r:.80}")
    return Config(**record)


def _is(value: Any, kind: Any) -> bool:
    """Whether a JSON value is one of an option of this type."""
    if get_args(kind):
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int and abs(value) < 1 << 53)


def to_record(options: Config | RuntimeOptions) -> dict[str, Any]:
    """Options as JSON values."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(options).items()
    }
