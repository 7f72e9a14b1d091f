"""What runs leave in their folders, read and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config
from hvdtrain.config.record import to_record
from hvdtrain.errors import UserError

FILES = ("config.json", "result.json")
TRACES = ("config.json", "result.json", "logs", "checkpoints")
"""What tells the folder of a run that did not end from any other folder."""
# What --api auto means, so that a run that spells it out is a repetition of one that does not.
DEFAULT_API = {"torch": "loop", "tensorflow": "loop", "mxnet": "gluon"}
# Options that are columns, names for others, or what a repetition may change.
NOT_SETTINGS = ("framework", "strategy", "api", "kvstore", "recipe", "seed")


@dataclass(frozen=True)
class Run:
    """A finished run, as its folder tells it. What it did not measure is None."""

    folder: Path
    options: dict[str, Any]
    """Those of `Config`; ones that an old run lacks have their defaults."""
    ranks: int
    devices: int
    """Devices of one rank."""
    global_batch: int
    steps: int
    settings: dict[str, str]
    """Options that hold for all repetitions, with device and machine, as text."""
    host: dict[str, str]
    versions: dict[str, str]
    started: str
    images_per_s: float | None
    epoch_s: float | None
    shares: tuple[float, ...] | None
    """Parts of a step's time: computing, communicating, and waiting for data."""
    peak_rss_mb: float | None
    accuracy: float | None

    @property
    def replicas(self) -> int:
        return self.ranks * self.devices

    @property
    def strategy(self) -> str:
        """The strategy, with key-value store and programming style where these are not the default."""
        options = self.options
        kvstore = f" {options['kvstore']}" if options["kvstore"] != Config.kvstore else ""
        return f"{options['strategy']}{kvstore}" + (f" ({options['api']})" if options["api"] != "auto" else "")

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for runs that are repetitions of each other."""
        own = (self.options["framework"], self.strategy, self.ranks, self.devices)
        return (*own, *self.settings.items())


def collect(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders or their direct children, and the names of those that did not end, with the reason.

    Raises UserError where there are none, or one cannot be read.
    """
    folders: dict[Path, Path] = {}
    unfinished: dict[Path, str] = {}
    for path in paths:
        for folder in _candidates(path):
            lacking = [name for name in FILES if not (folder / name).is_file()]
            if not lacking:
                folders.setdefault(folder.resolve(), folder)
            else:
                unfinished[folder.resolve()] = f"{clean(str(folder))}: no {' and no '.join(lacking)}"
    if not folders:
        also = f" ({len(unfinished)} did not end: {'; '.join(unfinished.values())})" if unfinished else ""
        given = ", ".join(clean(str(path)) for path in paths)
        raise UserError(f"{given}: no finished run there{also}; give run folders, which hold {' and '.join(FILES)}")
    return [read_run(folder) for folder in folders.values()], list(unfinished.values())


def _candidates(path: Path) -> list[Path]:
    """The folder itself where it is a run's, else those of its children that are."""
    try:
        if not path.exists():
            raise UserError(f"{clean(str(path))}: no such folder; give a run's folder, or one that holds runs")
        if not path.is_dir():
            raise UserError(f"{clean(str(path))}: not a folder; give a run's folder, or one that holds runs")
        if any((path / name).is_file() for name in FILES):
            return [path]
        return sorted(child for child in path.iterdir() if any((child / name).exists() for name in TRACES))
    except OSError as error:
        raise UserError(f"{clean(str(path))}: cannot be listed ({error.strerror}); give folders you may read") from None


def read_run(folder: Path) -> Run:
    """The finished run in `folder`. Raises UserError, naming the file, where one is not what a run writes."""
    config, result = (Record.read(folder / name) for name in FILES)
    options = config.record("config").options()
    if options["api"] == DEFAULT_API.get(options["framework"]):
        options["api"] = "auto"
    ranks, devices = config.count("ranks"), config.count("devices", 1)
    batch = options["batch_size"] * (ranks if options["batch_scope"] == "per-rank" else 1)
    host = config.record("host", {}).words()
    settings = {name: _word(value) for name, value in options.items() if name not in NOT_SETTINGS}
    settings["device"] = config.words().get("device", "unknown").split(":")[0]
    settings["machine"] = f"{host.get('processor') or 'unknown processor'}, {host.get('cores', '?')} cores"
    speed = result.number("images_per_s")
    shares = result.record("shares", {})
    parts = [shares.number(name) for name in ("compute", "communicate", "data")]
    return Run(
        folder=folder,
        options=options,
        ranks=ranks,
        devices=devices,
        global_batch=result.count("global_batch", batch),
        steps=result.count("steps"),
        settings=settings,
        host=host,
        versions=config.record("versions", {}).words(),
        started=config.words().get("started", ""),
        images_per_s=speed if speed and speed > 0 else None,  # 0 where no interval was measured
        epoch_s=result.number("epoch_s"),
        shares=None if None in parts else tuple(part for part in parts if part is not None),
        peak_rss_mb=result.number("peak_rss_mb"),
        accuracy=result.number("accuracy"),
    )


class Record:
    """A JSON object of a file, read with suspicion: what is wrong is a UserError that names the file."""

    def __init__(self, path: Path, values: Any, what: str = "the file") -> None:
        if not isinstance(values, dict):
            raise self._wrong(path, f"{what} is no JSON object")
        self._path, self._values = path, values

    @classmethod
    def read(cls, path: Path) -> Record:
        """The object that a file holds."""
        try:
            return cls(path, json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise cls._wrong(path, str(error.strerror)) from None
        except (ValueError, RecursionError) as error:
            raise cls._wrong(path, f"no JSON: {error}") from None

    @staticmethod
    def _wrong(path: Path, reason: str) -> UserError:
        return UserError(
            f"{clean(str(path))}: cannot be read ({reason}); mend it, or move this run's folder away or run it again"
        )

    def record(self, name: str, default: dict[str, Any] | None = None) -> Record:
        """The object of that name; `default` where it is missing or null."""
        value = self._values.get(name)
        return Record(self._path, default if value is None else value, f'"{name}"')

    def words(self) -> dict[str, str]:
        """All values that are text or numbers, as text."""
        return {
            clean(name): _word(value) for name, value in self._values.items() if isinstance(value, str | int | float)
        }

    def options(self) -> dict[str, Any]:
        """Training options; those that are missing have their defaults, and each one known has its default's type."""
        defaults = to_record(Config())
        for name, default in defaults.items():
            kind = int | float if isinstance(default, float) else type(default)
            if not isinstance(self._values.get(name, default), kind):
                raise self._wrong(self._path, f'"{name}" is {self._values[name]!r:.80}')
        own = {clean(name): clean(value) if isinstance(value, str) else value for name, value in self._values.items()}
        return {**defaults, **own}

    def number(self, name: str) -> float | None:
        """A finite number, else None."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:  # an integer beyond all floats
            return None

    def count(self, name: str, default: int | None = None) -> int:
        """A number of things, 0 only for steps."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < (name != "steps"):
            raise self._wrong(self._path, f'"{name}" is {value!r:.80}, and not a number of {name}')
        return value


def clean(text: str) -> str:
    """Text without what no page can hold: control characters, and halves of characters in odd file names."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else clean(str(value))
