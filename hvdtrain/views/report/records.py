"""The JSON files of runs, checked while they are read: anything unexpected is a UserError that names the file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config
from hvdtrain.config.sources import to_record
from hvdtrain.errors import UserError
from hvdtrain.system.files import read_json
from hvdtrain.system.text import finite_number, printable


class JsonRecord:
    """A JSON object of a file."""

    def __init__(self, path: Path, values: Any, what: str = "the file") -> None:
        if not isinstance(values, dict):
            raise self._invalid(path, f"{what} is not a JSON object")
        self._path, self._values = path, values

    @classmethod
    def read(cls, path: Path) -> JsonRecord:
        """The object that a file holds."""
        try:
            return cls(path, read_json(path))
        except OSError as error:
            raise cls._invalid(path, str(error.strerror)) from None
        except (ValueError, RecursionError) as error:
            raise cls._invalid(path, f"not JSON: {error}") from None

    @staticmethod
    def _invalid(path: Path, reason: str) -> UserError:
        return UserError(
            f"{printable(str(path))}: cannot be read ({reason})",
            "correct it, or move this run's folder away, or repeat the run",
        )

    def record(self, name: str, default: dict[str, Any] | None = None) -> JsonRecord:
        """The object of that name; `default` if it is missing or null."""
        value = self._values.get(name)
        return JsonRecord(self._path, default if value is None else value, f'"{name}"')

    def texts(self) -> dict[str, str]:
        """All values that are text or numbers, as text."""
        return {
            printable(name): as_text(value)
            for name, value in self._values.items()
            if isinstance(value, str | int | float)
        }

    def numbers(self) -> dict[str, float]:
        """All values that are finite numbers, by name."""
        found = {printable(name): self.number(name) for name in self._values}
        return {name: value for name, value in found.items() if value is not None}

    def options(self) -> dict[str, Any]:
        """Training options: defaults for those that are missing; known ones must have their default's type."""
        defaults = to_record(Config())
        for name, default in defaults.items():
            kind = {float: int | float, tuple: list | tuple}.get(type(default), type(default))
            if not isinstance(self._values.get(name, default), kind):
                raise self._invalid(self._path, f'"{name}" is {self._values[name]!r:.80}')
        return {printable(name): _shown(value) for name, value in (defaults | self._values).items()}

    def number(self, name: str) -> float | None:
        """A finite number, or None."""
        return finite_number(self._values.get(name))

    def sum(self, name: str) -> float | None:
        """The sum of a matrix, which is a list of lists of finite numbers; None for anything else."""
        rows = self._values.get(name)
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            return None
        try:
            total = sum(float(value) for row in rows for value in row)
        except (TypeError, ValueError, OverflowError):
            return None
        return total if math.isfinite(total) else None

    def as_json(self) -> str:
        """The object as text, the same for equal ones; empty for an empty one."""
        return json.dumps(self._values, sort_keys=True) if self._values else ""

    def count(self, name: str, default: int | None = None) -> int:
        """A positive integer; for steps, 0 as well."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < (name != "steps"):
            raise self._invalid(self._path, f'"{name}" is {value!r:.80}, which is not a number of {name}')
        return value


def as_text(value: Any) -> str:
    """A JSON value in a table."""
    return ("yes" if value else "no") if isinstance(value, bool) else printable(str(value))


def _shown(value: Any) -> Any:
    """A recorded value as reports have it; those of a list as one text."""
    if isinstance(value, list | tuple):
        return printable(" ".join(map(str, value)))
    return printable(value) if isinstance(value, str) else value
