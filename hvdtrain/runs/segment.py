"""Steps of a run that can be trained again: from a checkpoint, or the initial weights, to a later recorded hash."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.config.option import facts, key
from hvdtrain.config.options import AUTO_RESUME, Config
from hvdtrain.config.sources import from_record
from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.metrics import MetricsReader, SavedHash
from hvdtrain.runs.records import Record, seconds_of, shown
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry
from hvdtrain.system.python_files import is_reference, is_script

CONFIG = re.compile(r"config(-\d{1,6})?\.json")
SAME_STEPS = {"max_steps", *(name for name, about in facts(Config).items() if about.only_distributes)} - {"framework"}
"""Options that may differ in a run that trains the same steps."""
MAX_LISTED = 12
"""Steps that a message lists: of more, the last ones."""


@dataclass(frozen=True)
class Session:
    """A process's part of a run: a resumed run has several."""

    started: float
    """Seconds since 1970."""
    record: Record
    """Its config.json."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide the bits, as JSON values."""
        values = self.record.table("config").values
        return {name: value for name, value in values.items() if name not in SAME_STEPS}


@dataclass(frozen=True)
class Segment:
    """Some steps of a run."""

    folder: Path
    start: Entry | None
    """The checkpoint that they begin from; None for the initial weights."""
    hashes: dict[int, SavedHash]
    """What the run recorded of the steps after `start`, by step; the last one is where the segment ends."""
    start_hash: SavedHash | None
    session: Session
    """The one that trained them, or the last of several with the same options."""

    @property
    def first(self) -> int:
        """Number of steps before it."""
        return self.start.step if self.start else 0

    @property
    def data(self) -> str:
        """The beginning of the data's fingerprint; empty if the run did not record it."""
        return self.session.record.text("data")

    @property
    def last(self) -> SavedHash:
        """Where it ends."""
        return self.hashes[max(self.hashes)]

    @property
    def config(self) -> Config:
        """The options of the run. Raises UserError if they are not those of this version."""
        try:
            return from_record(self.session.record.table("config").values)
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.folder}: no valid config.json of a run ({error})", "give another run") from None

    @classmethod
    def choose(cls, folder: Path, first: int | None = None, last: int | None = None) -> Segment:
        """The steps `first` to `last` of the run in this folder.

        By default `last` is the last step that has a hash, and `first` that of the newest checkpoint before, else 0.
        Raises UserError if the run cannot be trained again there.
        """
        reader = MetricsReader(folder / metrics.NAME).read()
        hashes = reader.hashes()
        end = _end(folder, hashes, last)
        start = _start(folder, first, end.step)
        after = start.step if start else 0
        session = _session(folder, reader, after, end)
        if not start and (resumed := resumed_from(folder)):
            reason = f"{folder} did not begin with initial weights, but from {shown(resumed)}"
            raise UserError(reason, "give --from and the step of a checkpoint, or replay that run")
        between = {step: saved for step, saved in hashes.items() if after < step <= end.step}
        return cls(folder, start, between, hashes.get(after), session)


def _end(folder: Path, hashes: dict[int, SavedHash], last: int | None) -> SavedHash:
    if not hashes:
        raise UserError(f"{folder} has recorded no hash of its weights", "give a run that has written a checkpoint")
    if last is None:
        last = [*hashes][-1]
    if last not in hashes:
        raise UserError(f"--to {last}: {folder} has recorded no hash at that step", f"give {_steps(hashes)}")
    return hashes[last]


def _start(folder: Path, first: int | None, end: int) -> Entry | None:
    """The checkpoint to begin from, of those that the newest one continues."""
    entries = [entry for entry in checkpoint_folder.current_line(folder / "checkpoints") if entry.step < end]
    if first is None:
        return entries[-1] if entries else None
    if first >= end:
        raise UserError(f"--from {first}: not before step {end}, where the replay ends", "give a lower one, or --to")
    by_step = {entry.step: entry for entry in entries}
    if first and first not in by_step:
        steps = _steps([0, *by_step])
        raise UserError(f"--from {first}: {folder} has no checkpoint of that step", f"give {steps} (0 begins anew)")
    return by_step.get(first)


def _steps(steps: Any) -> str:
    """Steps in a remedy."""
    *others, last = map(str, [*steps][-MAX_LISTED:])
    return f"{', '.join(others)} or {last}" if others else last


def _session(folder: Path, reader: MetricsReader, first: int, end: SavedHash) -> Session:
    """The last session that trained steps after `first`. Raises UserError if several did, with other options."""
    known = sessions(folder)
    if not known:
        raise UserError(f"{folder}: no valid config.json of a run there", "give a folder under runs/")
    times = [record.get("time") for record in reader.of_kind("train") if first < record["step"] <= end.step]
    trained = [_at(known, time) for time in [*times, end.time] if isinstance(time, int | float)]
    chosen = _at(known, end.time)
    for session in trained:
        for name, value in chosen.options.items():
            if session.options.get(name) != value:
                reason = (
                    f"{folder} trained steps {first} to {end.step} with --{key(name)} {session.options.get(name)!s:.80}"
                )
                raise UserError(
                    f"{reason} at first, then {value!s:.80}", "give by --from and --to a part with the same one"
                )
    config = chosen.record.table("config")
    model = config.text("model")
    if is_script(model):
        raise UserError(
            f"{folder} was trained by the loop of {model}, which only that script can repeat",
            f"start {model} with --resume {folder}/checkpoints/step-... --name NEW --max-steps {end.step}, and compare "
            "the hashes with hvdtrain report",
        )
    if "task" in chosen.record.table("network").values and not is_reference(model):
        raise UserError(f"{folder}: its task {model} is in no file", "replay runs of a task that is FILE.py:CLASS")
    return chosen


def sessions(folder: Path) -> list[Session]:
    """The sessions of a run, in their order; without those whose record is damaged."""
    records = [Record.read(path) for path in folder.glob("config*.json") if CONFIG.fullmatch(path.name)]
    known = [Session(time, record) for record in records if (time := seconds_of(record.text("started"))) is not None]
    return sorted((one for one in known if one.record.table("config")), key=lambda session: session.started)


def _at(known: list[Session], time: float) -> Session:
    """The session that ran at that time."""
    return [known[0], *(session for session in known if session.started <= time)][-1]


def resumed_from(folder: Path) -> str:
    """The run or checkpoint that the first session of a run continued; empty if it began with initial weights."""
    path = sessions(folder)[0].record.table("runtime").text("resume")
    return "" if Path(path) == AUTO_RESUME else path
