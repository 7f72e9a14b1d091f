"""python -m hvdtrain report RUNS...: what runs measured, as one table in Markdown, CSV and an HTML page with charts.

A pure reader of the folders that training leaves: it imports no framework and changes no run.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
import math
import os
import statistics
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import numpy as np

from hvdtrain import checkpoint
from hvdtrain.checkpoint import Checkpoint
from hvdtrain.config import Config, to_record
from hvdtrain.errors import HvdtrainError, UserError

if TYPE_CHECKING:  # Matplotlib takes half a second to import: only a report that is drawn waits for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = ("config.json", "result.json")
TRACES = ("config.json", "result.json", "logs", "checkpoints")
"""What tells the folder of a run that did not end from any other folder."""
NONE = "—"
# What --api auto means, so that a run that spells it out is a repetition of one that does not.
DEFAULT_API = {"torch": "loop", "tensorflow": "loop", "mxnet": "gluon"}
# Options that are columns, names for others, or what a repetition may change.
NOT_SETTINGS = ("framework", "strategy", "api", "kvstore", "recipe", "seed")
# Options that decide how long a step takes: those of a row and of what it is compared with are equal.
DECIDE_SPEED = ("model", "data", "precision", "remainder", "optimizer", "accumulate", "clip_norm", "on_nan")
# Options that say how ranks meet, which one process has no use for.
HOW_RANKS_MEET = ("framework", "strategy", "api", "kvstore", "recipe", "compression")


def main(argv: list[str]) -> None:
    """Write the report and print its table; ends the process with a status where that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain report",
        description="Compare runs: a table in Markdown, CSV and one HTML page with charts.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="default: report")
    options = parser.parse_args(argv)
    try:
        runs, unfinished = collect(options.runs)
        report = Report(runs, unfinished)
        pages = {"report.md": report.markdown(), "report.csv": report.csv(), "report.html": report.html()}
        write(options.output, pages)
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    _print(f"{report.markdown_table()}\nwritten: {', '.join(str(options.output / name) for name in pages)}")


def _print(text: str) -> None:
    """Print also where the terminal's encoding lacks a character."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def write(folder: Path, pages: dict[str, str]) -> None:
    """Write all files or none, each first under another name. Raises UserError where the folder does not take them."""
    unfinished = {folder / name: folder / f".{name}.{os.getpid()}" for name in pages}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for (path, draft), text in zip(unfinished.items(), pages.values(), strict=True):
                if path.is_dir():
                    raise IsADirectoryError(0, f"{path.name} is a folder there")
                draft.write_text(text, encoding="utf-8", newline="")
            for path, draft in unfinished.items():
                draft.replace(path)
        finally:
            for draft in unfinished.values():
                draft.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        place = clean(str(folder))
        raise UserError(f"{place}: the report cannot be written there ({reason}); give another --output") from None


# Reading.


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


# Rows.


class Spread(NamedTuple):
    """Of some repetitions."""

    median: float
    least: float
    greatest: float
    number: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of what was measured; None where nothing was."""
    measured = [value for value in values if value is not None]
    return Spread(statistics.median(measured), min(measured), max(measured), len(measured)) if measured else None


@dataclass
class Row:
    """Runs that differ only in repetition, and how they compare with others."""

    runs: list[Run]
    note: str = ""
    """Settings in which this row differs from most runs."""
    scaling: Scaling | None = None
    difference: Difference | None = None

    def __post_init__(self) -> None:
        first = self.run = self.runs[0]
        self.framework, self.strategy = str(first.options["framework"]), first.strategy
        self.size = f"{first.ranks} × {first.devices}"
        self.images_per_s = spread(run.images_per_s for run in self.runs)
        self.epoch_s = spread(run.epoch_s for run in self.runs)
        self.accuracy = spread(run.accuracy for run in self.runs)
        self.peak_rss_mb = spread(run.peak_rss_mb for run in self.runs)
        measured = [run.shares for run in self.runs if run.shares]
        self.shares = tuple(map(statistics.fmean, zip(*measured, strict=True))) if measured else None

    @property
    def label(self) -> str:
        return f"{self.framework} {self.strategy}, {self.size}" + (f", {self.note}" if self.note else "")


class Scaling(NamedTuple):
    """How a row compares with that of one replica."""

    kind: str
    """`strong`: both have the same global batch; `weak`: the same batch of a replica."""
    base: Row
    speedup: float
    """images/s of the row over those of the base."""
    efficiency: float
    """Speedup over the number of replicas."""
    serial_fraction: float | None
    """Experimentally determined serial fraction, for strong scaling over more than one replica."""


class Difference(NamedTuple):
    """How far a row's parameters are from those of one process."""

    largest: float | None
    """max |difference| over all parameters and repetitions; None for the run that others are compared with."""
    reference: Run


def make_rows(runs: list[Run]) -> list[Row]:
    """The rows, in the order of the table, compared with each other."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        groups.setdefault(run.identity, []).append(run)
    rows = [Row(group) for group in groups.values()]
    usual = {name: values.most_common(1)[0][0] for name, values in count_settings(runs).items()}
    for row in rows:
        row.note = ", ".join(
            f"{name.replace('_', '-')} {value}" for name, value in row.run.settings.items() if value != usual.get(name)
        )
    rows.sort(key=_order)
    references = References(runs)
    for row in rows:
        row.scaling = scaling(row, rows)
        row.difference = references.difference(row)
    return rows


def _order(row: Row) -> tuple[Any, ...]:
    run = row.run
    return (row.framework, row.note, run.options["strategy"] != "single", row.strategy, run.replicas, run.ranks)


def count_settings(runs: Iterable[Run]) -> dict[str, Counter[str]]:
    """setting: how many of the runs have which value."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            counts.setdefault(name, Counter())[value] += 1
    return counts


def scaling(row: Row, rows: list[Row]) -> Scaling | None:
    """The row against that of one replica: strategy single, else its own strategy; None where there is none."""
    run, measured = row.run, row.images_per_s
    weak = run.options["batch_scope"] == "per-rank" and run.ranks > 1
    bases = [
        (preference, sum(run.settings[name] != base.run.settings.get(name) for name in run.settings), number)
        for number, base in enumerate(rows)
        if (preference := _preference(run, base.run)) is not None
        and base.run.global_batch * (run.replicas if weak else 1) == run.global_batch
        and base.images_per_s
    ]
    if not bases or not measured:
        return None
    base = rows[min(bases)[2]]
    assert base.images_per_s
    speedup, p = measured.median / base.images_per_s.median, run.replicas
    serial = karp_flatt(speedup, p) if p > 1 and not weak else None
    return Scaling("weak" if weak else "strong", base, speedup, speedup / p, serial)


def _preference(run: Run, base: Run) -> int | None:
    """How well `base` stands for one replica of `run`, 0 best; None where it does not."""
    alike = all(run.settings.get(name) == base.settings.get(name) for name in (*DECIDE_SPEED, "device", "machine"))
    if not alike or base.replicas > 1 or base.options["framework"] != run.options["framework"]:
        return None
    if base.options["strategy"] == "single":
        return 0 if base.options["api"] == run.options["api"] else 1 if base.options["api"] == "auto" else 2
    return 3 if base.strategy == run.strategy else None


def karp_flatt(speedup: float, replicas: int) -> float:
    """Experimentally determined serial fraction, (1 / S - 1 / p) / (1 - 1 / p).

    Karp and Flatt, Measuring parallel processor performance, CACM 33(5), 1990.
    """
    return (1 / speedup - 1 / replicas) / (1 - 1 / replicas)


class References:
    """Runs of one process, which others that train the same network on the same batches should equal."""

    def __init__(self, runs: list[Run]) -> None:
        self._checkpoints: dict[Path, Checkpoint | None] = {}
        self._runs: dict[tuple[Any, ...], list[Run]] = {}
        for run in sorted(runs, key=lambda run: (run.options["api"] != "auto", str(run.folder))):
            if run.options["strategy"] == "single" and run.replicas == 1:
                self._runs.setdefault(self._training(run), []).append(run)

    @staticmethod
    def _training(run: Run) -> tuple[Any, ...]:
        """What decides the parameters at the end, however ranks meet.

        The linear scaling rule makes the batch of --batch-scope per-rank, and its learning rate, those of one process.
        """
        options = {name: value for name, value in run.options.items() if name not in HOW_RANKS_MEET}
        scale = run.ranks if options.pop("batch_scope") == "per-rank" else 1
        options["lr"] = f"{options['lr'] * scale:.9g}"
        options["batch_size"] = run.global_batch
        return (run.steps, *sorted((name, str(value)) for name, value in options.items()))

    def difference(self, row: Row) -> Difference | None:
        """The largest over the row's runs; None where no run of one process is comparable."""
        pairs = [(run, reference) for run in row.runs if (reference := self._reference(run))]
        if not pairs:
            return None
        others = [(run, reference) for run, reference in pairs if run is not reference]
        found = [(self._largest(run, reference), reference) for run, reference in others]
        return Difference(*max(found, key=lambda one: one[0])) if found else Difference(None, pairs[0][1])

    def _reference(self, run: Run) -> Run | None:
        """The run of one process to compare with, of the same framework where there is one."""
        alike = self._runs.get(self._training(run), [])
        own = self._end(run)
        for candidate in sorted(alike, key=lambda one: one.options["framework"] != run.options["framework"]):
            end = self._end(candidate)
            if own and end and own.data == end.data and _shapes(own) == _shapes(end):
                return candidate
        return None

    def _end(self, run: Run) -> Checkpoint | None:
        """The checkpoint of a run's last step; None where it is gone, damaged or not finite."""
        if run.folder not in self._checkpoints:
            try:
                saved = checkpoint.newest(run.folder)[1]
            except (UserError, OSError):
                saved = None
            whole = saved and saved.position.step == run.steps and _finite(saved)
            self._checkpoints[run.folder] = saved if whole else None
        return self._checkpoints[run.folder]

    def _largest(self, run: Run, reference: Run) -> float:
        own, other = self._end(run), self._end(reference)
        assert own and other
        names = own.weights
        return max(float(np.abs(np.subtract(own.weights[n], other.weights[n], dtype=np.float64)).max()) for n in names)


def _finite(saved: Checkpoint) -> bool:
    return bool(saved.weights) and all(value.size and np.isfinite(value).all() for value in saved.weights.values())


def _shapes(saved: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in saved.weights.items()}


# Text.

HEADINGS = (
    "framework",
    "strategy",
    "ranks × devices",
    "images/s: median (least to greatest, runs)",
    "epoch on the slowest rank, s",
    "compute / communicate / data",
    "scaling efficiency",
    "Karp–Flatt serial fraction",
    "peak memory of a rank, MB",
    "test accuracy",
    "max difference of any parameter from one process",
)
NOTE = "settings unlike most runs"
TEXT_COLUMNS = (HEADINGS[0], HEADINGS[1], NOTE)

DEFINITIONS = (
    (
        "Row",
        "The runs that differ only in repetition: same framework, strategy, ranks, devices, settings and machine. "
        "Seeds may differ.",
    ),
    ("Machine", "As rank 0 saw it."),
    ("Ranks × devices", "Processes, times the devices of each; p, the number of replicas, is their product."),
    (
        "Images/s",
        "Training images a second over all ranks, the median interval of a run. Of several runs the median, the least "
        "and the greatest.",
    ),
    ("Epoch", "Seconds that one epoch's training took on the rank that took longest; the median of the runs."),
    (
        "Compute / communicate / data",
        "Parts of a step's time, the mean of the runs that measured them (train --profile N).",
    ),
    (
        "Scaling efficiency",
        "S / p, where the speedup S is images/s over the images/s of the base: the row of one replica with strategy "
        "single, else with the same strategy, of the same framework, precision, network, data and machine. Strong: the "
        "base has the same global batch (Amdahl, Validity of the single processor approach to achieving large scale "
        "computing capabilities, AFIPS 1967). Weak, with --batch-scope per-rank: the base has the batch of one replica "
        "(Gustafson, Reevaluating Amdahl's law, CACM 31(5), 1988). 1 is ideal.",
    ),
    (
        "Karp–Flatt serial fraction",
        "e = (1/S - 1/p) / (1 - 1/p), for strong scaling with p above 1: the part of the work that would have to be "
        "serial to explain S. A fraction that grows with p tells of communication, not of serial work; one below 0, of "
        "a speedup beyond p; one above 1, of a job slower than its base (Karp and Flatt, Measuring "
        "parallel processor performance, CACM 33(5), 1990).",
    ),
    ("Peak memory", "The largest resident set of any rank, in MB of 2^20 bytes; the greatest of the runs."),
    ("Test accuracy", "Part of the test images classified as labelled, after the last step; the median of the runs."),
    (
        "Max difference",
        "max |a - b| over all parameters at the last step, where b is a run with strategy single: of the same "
        "framework, else of the one named; with the same data, seed, first weights, network, global batch, learning "
        "rate, other options and number of steps. The greatest of the runs; compression may differ.",
    ),
    (NONE, "Not measured, or no run to compare with."),
)


HOST = ("name", "processor", "cores", "system")


class Report:
    """The rows with all that is said about them, on any kind of page."""

    title = "Runs of hvdtrain, compared"

    def __init__(self, runs: list[Run], unfinished: list[str]) -> None:
        self.rows = make_rows(runs)
        self.unfinished = unfinished
        self._runs = runs
        self._noted = any(row.note for row in self.rows)
        self.headings = [*HEADINGS[:3], *([NOTE] if self._noted else []), *HEADINGS[3:]]

    def summary(self) -> str:
        """How much was read, and of when."""
        times = sorted(run.started for run in self._runs if run.started)
        span = f", started {times[0]}" + (f" to {times[-1]}" if times[-1] != times[0] else "") if times else ""
        return f"{_count(len(self._runs), 'run')} in {_count(len(self.rows), 'row')}{span}."

    def machines(self) -> list[str]:
        """One line a machine."""
        counts = Counter(tuple(run.host.get(name) or "?" for name in HOST) for run in self._runs)
        lines = [
            f"{name}: {processor}, {cores} cores, {system}" + (f" ({_count(number, 'run')})" if len(counts) > 1 else "")
            for (name, processor, cores, system), number in counts.items()
        ]
        if len(counts) > 1:
            lines.append(
                f"These are {len(counts)} machines: figures of one are not comparable with figures of another. Runs on "
                "different processors or numbers of cores are never in one row."
            )
        return lines

    def versions(self) -> list[tuple[str, str]]:
        """(package, version), each version with its number of runs where they differ."""
        names = dict.fromkeys(name for run in self._runs for name in run.versions)
        return [(name, self._values(run.versions.get(name, "not there") for run in self._runs)) for name in names]

    def settings(self) -> list[tuple[str, str]]:
        """(option, value), each value with its number of runs where they differ."""
        names = dict.fromkeys(name for run in self._runs for name in run.settings)
        texts = [
            (name.replace("_", "-"), self._values(run.settings.get(name, "not there") for run in self._runs))
            for name in names
            if name != "machine"
        ]
        texts.append(("seed", self._values(str(run.options["seed"]) for run in self._runs)))
        threads = "OMP_NUM_THREADS"
        texts.append((threads, self._values(run.host.get(threads) or "unset" for run in self._runs)))
        return texts

    @staticmethod
    def _values(values: Iterable[str]) -> str:
        counts = Counter(values).most_common()
        if len(counts) == 1:
            return counts[0][0]
        return "differs: " + ", ".join(f"{value} ({_count(number, 'run')})" for value, number in counts)

    def cells(self, row: Row) -> list[str]:
        """A row as text, in the order of `headings`."""
        noted = [row.note] if self._noted else []
        return [
            row.framework,
            row.strategy,
            row.size,
            *noted,
            _range(row.images_per_s),
            f"{row.epoch_s.median:.2f}" if row.epoch_s else NONE,
            " / ".join(f"{part:.0%}" for part in row.shares) if row.shares else NONE,
            _efficiency(row),
            f"{row.scaling.serial_fraction:.3f}" if row.scaling and row.scaling.serial_fraction is not None else NONE,
            f"{row.peak_rss_mb.greatest:,.0f}" if row.peak_rss_mb else NONE,
            _accuracy(row.accuracy),
            _difference(row),
        ]

    def markdown_table(self) -> str:
        """The rows as a table of Markdown."""
        rules = ["---" if heading in TEXT_COLUMNS else "---:" for heading in self.headings]
        lines = [self.headings, rules, *(list(map(_escape, self.cells(row))) for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def markdown(self) -> str:
        """The page in Markdown, without charts."""
        parts = [f"# {self.title}\n\n{self.summary()}\n"]
        for title, pairs in (("Versions", self.versions()), ("Settings", self.settings())):
            parts.append(f"## {title}\n\n" + "".join(f"- {_escape(name)}: {_escape(text)}\n" for name, text in pairs))
        parts.insert(1, "## Machine\n\n" + "".join(f"- {_escape(line)}\n" for line in self.machines()))
        parts.append(f"## Figures\n\n{self.markdown_table()}")
        if self.unfinished:
            parts.append("## Unfinished runs\n\n" + "".join(f"- {_escape(line)}\n" for line in self.unfinished))
        parts.append("## Definitions\n\n" + "".join(f"- **{name}**: {_escape(text)}\n" for name, text in DEFINITIONS))
        return "\n".join(parts)

    def csv(self) -> str:
        """The rows as numbers in full precision; a cell without a number is empty."""
        file = io.StringIO()
        records = [_csv_record(row) for row in self.rows]
        writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return file.getvalue()

    def html(self) -> str:
        """The page with charts, in one file that needs no other."""
        charts, left_out = draw(self.rows)
        template = resources.files("hvdtrain").joinpath("report.html.jinja").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.from_string(template).render(
            report=self,
            table=[self.cells(row) for row in self.rows],
            text_columns=TEXT_COLUMNS,
            charts=charts,
            left_out=left_out,
            definitions=DEFINITIONS,
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _escape(text: str) -> str:
    """Text in Markdown as it stands: no table's border, no HTML, no emphasis."""
    for character in "\\`*[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _range(value: Spread | None) -> str:
    if value is None:
        return NONE
    ends = f"{value.least:,.0f} to {value.greatest:,.0f}, " if value.number > 1 else ""
    return f"{value.median:,.0f} ({ends}{_count(value.number, 'run')})"


def _efficiency(row: Row) -> str:
    if row.scaling is None:
        return NONE
    return "base" if row.scaling.base is row else f"{row.scaling.kind} {row.scaling.efficiency:.2f}"


def _accuracy(value: Spread | None) -> str:
    if value is None:
        return NONE
    least, middle, greatest = (f"{part:.4f}" for part in (value.least, value.median, value.greatest))
    return middle if least == greatest else f"{middle} ({least} to {greatest})"


def _difference(row: Row) -> str:
    if row.difference is None:
        return NONE
    largest, reference = row.difference
    if largest is None:
        return "reference"
    framework = reference.options["framework"]
    return f"{largest:.2g}" + (f" (from {framework})" if framework != row.framework else "")


def _csv_record(row: Row) -> dict[str, Any]:
    run, speed, compared = row.run, row.images_per_s, row.scaling
    shares = row.shares or (None, None, None)
    return {
        "framework": row.framework,
        "strategy": run.options["strategy"],
        "api": run.options["api"],
        "kvstore": run.options["kvstore"] if run.options["strategy"] == "kvstore" else None,
        "ranks": run.ranks,
        "devices": run.devices,
        "replicas": run.replicas,
        "settings": row.note,
        "global_batch": run.global_batch,
        "runs": len(row.runs),
        "images_per_s_median": speed and speed.median,
        "images_per_s_least": speed and speed.least,
        "images_per_s_greatest": speed and speed.greatest,
        "epoch_s": row.epoch_s and row.epoch_s.median,
        "compute_share": shares[0],
        "communicate_share": shares[1],
        "data_share": shares[2],
        "scaling": compared and compared.kind,
        "scaling_base": compared and compared.base.label,
        "speedup": compared and compared.speedup,
        "efficiency": compared and compared.efficiency,
        "karp_flatt": compared and compared.serial_fraction,
        "peak_rss_mb": row.peak_rss_mb and row.peak_rss_mb.greatest,
        "accuracy_median": row.accuracy and row.accuracy.median,
        "accuracy_least": row.accuracy and row.accuracy.least,
        "accuracy_greatest": row.accuracy and row.accuracy.greatest,
        "max_parameter_difference": row.difference and row.difference.largest,
        "difference_from": row.difference and clean(str(row.difference.reference.folder)),
        "folders": " ".join(clean(str(one.folder)) for one in row.runs),
    }


# Charts. Narrow, so that their text can be read on a phone; colours by Okabe and Ito (Color Universal Design, 2008).

WIDTH_IN = 5.2
COLOURS = {"mxnet": "#0072B2", "torch": "#E69F00", "tensorflow": "#009E73"}
OTHER_COLOUR = "#CC79A7"
SHARE_COLOURS = {"compute": "#0072B2", "communicate": "#E69F00", "data": "#56B4E9"}
SERIES_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = "osD^vP"
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # as an image the drawing sees no font of the page
    "text.parse_math": False,  # a dollar in a name is a dollar
}


class Kind(NamedTuple):
    """A kind of chart."""

    title: str
    about: str
    """What it shows, for who cannot see it."""
    has: Callable[[Row], object]
    """Whether a row has something to show."""
    draw: Callable[[list[Row]], Figure]
    missing: str
    """Why it is left out, where no row has."""


class Chart(NamedTuple):
    """A chart on the page."""

    title: str
    alt: str
    uri: str
    """The drawing itself, an SVG as data: URI, in which its ids cannot meet those of another."""
    width: int
    height: int
    """Natural size in CSS pixels."""


def draw(rows: list[Row]) -> tuple[list[Chart], list[str]]:
    """The charts, and which ones are left out and why."""
    import matplotlib

    charts, left_out = [], []
    for kind in KINDS:
        chosen = [row for row in rows if kind.has(row)]
        if not chosen:
            left_out.append(f"{kind.title}: {kind.missing}.")
            continue
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": kind.title}), warnings.catch_warnings():
            # Names may hold characters that the font lacks: a box stands for them.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            charts.append(_chart(kind, kind.draw(chosen), chosen))
    return charts, left_out


def _chart(kind: Kind, figure: Figure, rows: list[Row]) -> Chart:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    uri = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    names = "; ".join(row.label for row in rows)
    alt = f"{kind.about}, for {_count(len(rows), 'row')}: {names}. The table has the figures."
    return Chart(kind.title, alt, uri, width, height)


def _lanes(rows: list[Row]) -> tuple[Figure, Axes]:
    """A figure with a horizontal lane a row, the first on top."""
    from matplotlib.figure import Figure

    # The size of a row stays on one line.
    names = [row.label.replace(" × ", "\u00a0×\u00a0") for row in rows]
    labels = ["\n".join(textwrap.wrap(name, 30, max_lines=4, placeholder=" …")) for name in names]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + len(rows) * (0.16 + 0.15 * lines)), layout="constrained")
    axis = figure.subplots()
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def _colour(row: Row) -> str:
    return COLOURS.get(row.framework, OTHER_COLOUR)


def _framework_legend(figure: Figure, rows: list[Row]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_colour(row), label=row.framework) for row in {row.framework: row for row in rows}.values()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False)


def _whiskers(axis: Axes, place: int, value: Spread) -> None:
    if value.number > 1:
        ends = [[value.median - value.least], [value.greatest - value.median]]
        axis.errorbar([value.median], [place], xerr=ends, color="black", capsize=3, linewidth=1)


def _draw_speed(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    for place, row in enumerate(rows):
        assert row.images_per_s
        axis.barh(place, row.images_per_s.median, 0.62, color=_colour(row))
        _whiskers(axis, place, row.images_per_s)
    axis.set_xlabel("images/s (median; whiskers: least to greatest)")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5)
    _framework_legend(figure, rows)
    return figure


def _draw_shares(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    shares = np.array([row.shares for row in rows])
    left = np.zeros(len(rows))
    for (name, colour), widths in zip(SHARE_COLOURS.items(), shares.T, strict=True):
        bars = axis.barh(np.arange(len(rows)), widths, 0.62, left, color=colour, label=name)
        texts = [f"{width:.0%}" if width >= 0.07 else "" for width in widths]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if name == "compute" else "black")
        left += widths
    axis.set_xlabel("part of a step's time")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _draw_accuracy(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    for place, row in enumerate(rows):
        assert row.accuracy
        _whiskers(axis, place, row.accuracy)
        axis.plot(row.accuracy.median, place, "o", color=_colour(row), markersize=7)
    axis.margins(x=0.08)
    axis.set_xlabel("test accuracy, part of the images\n(median; whiskers: least to greatest;\naxis starts above 0)")
    axis.locator_params(axis="x", nbins=6)
    _framework_legend(figure, rows)
    return figure


def _draw_difference(rows: list[Row]) -> Figure:
    """Differences on a log axis; one of 0 has no place there and is written at the left edge."""
    figure, axis = _lanes(rows)
    values = [row.difference.largest or 0.0 for row in rows if row.difference]
    positive = [value for value in values if value > 0] or [1e-8]
    edge = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    axis.set_xscale("log")
    axis.set_xlim(edge, 10.0 ** (math.floor(math.log10(max(positive))) + 1))
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value > 0:
            axis.plot([edge, value], [place, place], color=_colour(row), linewidth=1.5)
            axis.plot(value, place, "o", color=_colour(row), markersize=7)
        else:
            axis.text(edge, place, " 0, equal bit for bit", va="center", fontsize=8)
    axis.xaxis.set_major_formatter("{x:.0e}")
    axis.set_xlabel("largest difference of any parameter from one process\n(no unit, logarithmic)")
    _framework_legend(figure, rows)
    return figure


def _draw_scaling(rows: list[Row]) -> Figure:
    """A panel for each base, which gives the ideal line; a line for each way to scale."""
    from matplotlib.figure import Figure

    panels: dict[str, dict[str, list[Row]]] = {}
    bases: dict[str, Row] = {}
    for row in rows:
        assert row.scaling
        base, run = row.scaling.base, row.run
        devices = f", {run.devices} devices a rank" if run.devices > 1 else ""
        series = f"{row.strategy}, {row.scaling.kind}{devices}" + (f", {row.note}" if row.note != base.note else "")
        panels.setdefault(base.label, {}).setdefault(series, []).append(row)
        bases[base.label] = base
    heights = [2.6 + 0.2 * len(lines) for lines in panels.values()]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (label, lines) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, bases[label], lines)
    return figure


def _draw_panel(axis: Axes, base: Row, lines: dict[str, list[Row]]) -> None:
    assert base.images_per_s
    one = base.images_per_s.median
    most = max(row.run.replicas for rows in lines.values() for row in rows)
    axis.plot([1, most], [one, most * one], ":", color="black", label="ideal: replicas times the base")
    for number, (name, rows) in enumerate(lines.items()):
        points = sorted((row.run.replicas, row.images_per_s.median) for row in rows if row.images_per_s)
        x, y = zip((1, one), *points, strict=True)
        colour, marker = SERIES_COLOURS[number % 6], MARKERS[number % 6]
        line = ("-", "--", "-.")[number % 3]  # lines that lie on each other are all seen
        label = textwrap.shorten(name, 60, placeholder=" …")
        axis.plot(x, y, line, marker=marker, color=colour, markersize=5, label=label)
    axis.set_title("\n".join(textwrap.wrap(f"base: {base.label}", 60)), fontsize=9, loc="left")
    axis.set(xlabel="replicas (ranks × devices)", ylabel="images/s", ylim=(0, None))
    axis.set_xticks(sorted({1, *(row.run.replicas for rows in lines.values() for row in rows)}))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.2), fontsize=8, frameon=False)


KINDS = (
    Kind(
        "Speed",
        "Bars: images a second, coloured by framework, with whiskers from the least to the greatest of the runs",
        lambda row: row.images_per_s,
        _draw_speed,
        "no run measured its speed",
    ),
    Kind(
        "Shares of a step",
        "Stacked bars: the parts of a step's time that computing, communicating and waiting for data take",
        lambda row: row.shares,
        _draw_shares,
        "no run measured them (train --profile N does)",
    ),
    Kind(
        "Scaling",
        "Lines: images a second over the number of replicas, beside the ideal line",
        lambda row: row.scaling and row.run.replicas > 1,
        _draw_scaling,
        "no row of several replicas has a comparable one of one replica",
    ),
    Kind(
        "Accuracy",
        "Points: test accuracy, coloured by framework, with whiskers from the least to the greatest of the runs",
        lambda row: row.accuracy,
        _draw_accuracy,
        "no run measured it",
    ),
    Kind(
        "Difference from one process",
        "Points on a logarithmic axis: the largest difference of any parameter from the run of one process",
        lambda row: row.difference and row.difference.largest is not None,
        _draw_difference,
        "no run has a comparable one with strategy single and a checkpoint of its last step",
    ),
)
