"""The checkpoints in a folder: whether their files are as they were written, and the order in which they were written.

Each checkpoint continues the newest whole one before it. The launcher reads this as well as training.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from hvdtrain.errors import UserError
from hvdtrain.system.files import Damaged, converted, decoded, open_regular, read_limited, read_record
from hvdtrain.system.text import did_you_mean, printable

MANIFEST, STATE = "manifest.json", "state.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"
"""What the names of the files with arrays begin with."""
FILES = ("weights.safetensors", "optimizer.safetensors", STATE)
"""The files of a checkpoint whose arrays are not divided over several files."""
BEST = "best"
"""In a run's folder, the name by which users mean its best checkpoint; there is no file of it. After a colon it may say
by which figure: `best:min:perplexity`."""
RUNS = Path("runs")
"""The folder of all runs, unless --runs says another."""
MAX_BYTES = 1 << 28
"""The largest JSON file that is read, in bytes; those of the largest built-in network have less than 1 MB."""
CHUNK_BYTES = 1 << 24
"""Bytes of a file with arrays that are read at a time to verify it."""

LARGEST_COUNT = 1 << 62
Order = tuple[float, ...]
"""What scores are compared by, the greater is better: `Score.order`, of earlier versions its first number; empty
where nothing was measured."""
Numbers = dict[str, int | float | dict[str, int | float | dict[str, int | float]]]


def _check_counts(*counts: int) -> None:
    if not all(0 <= count < LARGEST_COUNT for count in counts):
        raise ValueError("a count is below 0, or too large")


def _order(saved: Order | float) -> Order:
    """That of a file, where earlier versions have a number, 0 for none."""
    return saved if isinstance(saved, tuple) else (saved,) if saved else ()


@dataclass(frozen=True)
class Position:
    """How far training is: decides the next batch and its learning rate.

    The order of samples is a function of (seed, epoch), so this is all the random state there is.
    """

    epoch: int = 0
    """Number of completed epochs."""
    rows_in_epoch: int = 0
    """Rows of this epoch's order that steps have taken; valid even if the batch size changes."""
    step: int = 0
    """Number of steps done in all epochs."""
    global_batch: int = 0
    """Rows per step over all ranks, by which `step` counts."""
    seed: int = 0
    best: Order | float = ()
    """That of the best score so far."""
    best_epoch: int = 0
    """Number of complete epochs when it was measured."""
    best_by: str = ""
    """By which --score; empty where nobody chose one."""

    def after_step(self, samples: int) -> Position:
        """After one more step, of an epoch of so many rows."""
        rows = min(self.rows_in_epoch + self.global_batch, samples)
        after = object.__new__(Position)  # done in each step, and `replace` takes six times as long
        vars(after).update(vars(self), step=self.step + 1, rows_in_epoch=rows)
        return after

    def scored(self, order: Order, choice: str) -> Position:
        """After an evaluation at the end of an epoch, which may be done again. choice: of the run; see `best_by`."""
        if choice == self.best_by and order <= _order(self.best):
            return self
        return replace(self, best=order, best_epoch=self.epoch, best_by=choice)

    def has_waited(self, patience: int, choice: str) -> bool:
        """Whether so many epochs have passed since the one with the best score by this choice; never for 0."""
        return choice == self.best_by and 0 < patience <= self.epoch - self.best_epoch


@dataclass(frozen=True)
class SavedOptimizer:
    """See `interfaces.learner.OptimizerState`, whose arrays are in other files."""

    scale: float
    updates: int
    extra: Numbers


class SavedArithmetic(TypedDict, total=False):
    """See `training.consistency`."""

    shards: int
    threads: int
    instruction_set: str
    vendor: str
    device: str
    libc: str
    processor: str
    variables: dict[str, str]
    versions: dict[str, str]


@dataclass(frozen=True)
class Written:
    """When a checkpoint was written: its number in the order of writing, from 1."""

    written: int


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint has besides arrays and the optimizer: how far training is, and what identifies it."""

    position: Position
    model: str
    network: dict[str, Any]
    """From `Target.record`."""
    framework: str
    optimizer_name: str
    data: str
    """Fingerprint of the training data."""
    score: Order | float = ()
    """That of the weights."""
    classes: tuple[str, ...] = ()
    init: str = ""
    """How the weights were initialized."""
    arithmetic: dict[str, Any] = field(default_factory=dict)
    """With --shards, what decided the bits besides options and data: `consistency.arithmetic_record`."""
    score_choice: str = ""
    """The value of --score that the score is by; empty for accuracy or loss, which nobody chose."""


@dataclass(frozen=True, kw_only=True)
class State(CheckpointFacts):
    """The content of state.json."""

    history: Written
    optimizer: SavedOptimizer

    def __post_init__(self) -> None:
        at = self.position
        _check_counts(at.epoch, at.rows_in_epoch, at.step, at.global_batch, at.seed, at.best_epoch)
        _check_counts(self.history.written, self.optimizer.updates)
        if not isinstance(self.network.get("task", ""), str):
            raise ValueError("its task has no name")
        converted(self.arithmetic, SavedArithmetic)


@dataclass(frozen=True)
class Entry:
    """One checkpoint, as its state.json describes it."""

    path: Path
    step: int
    score: Order
    written: int
    score_choice: str = ""
    """What its score is of; only scores of the same are compared."""


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, by name."""
    # For names too long to be a path os.path.isdir is False, while pathlib raises.
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if os.path.isdir(folder) else []


def entries(folder: Path) -> list[Entry]:
    """The checkpoints in a folder whose state.json is as it was written, in the order of writing."""
    return sorted((entry for path in paths(folder) if (entry := entry_of(path))), key=lambda entry: entry.written)


def newest_whole(folder: Path) -> Entry | None:
    """The checkpoint from which the run resumes: the newest whose files are all as written."""
    return next((entry for entry in reversed(entries(folder)) if is_whole(entry.path)), None)


def best_first(known: Sequence[Entry]) -> list[Entry]:
    """Those of these checkpoints, oldest first, that have a score of the kind that was measured last, best first."""
    scored = [entry for entry in known if entry.score]
    comparable = [entry for entry in scored if entry.score_choice == scored[-1].score_choice]
    return sorted(comparable, key=lambda entry: (entry.score, entry.written), reverse=True)


def run_of_best(path: Path) -> Path | None:
    """The run of which `path`, `RUN/best` or `RUN/best:CHOICE`, names the best checkpoint; None for another path."""
    is_name = (
        path.name.partition(":")[0] == BEST and not os.path.lexists(path) and os.path.isdir(path.parent / "checkpoints")
    )
    return path.parent if is_name else None


def run_of(path: Path) -> Path | None:
    """The run of the checkpoint that `path` names: `RUN/best` or the checkpoint's folder; None for another path."""
    return run_of_best(path) or (path.absolute().parent.parent if os.path.isfile(path / MANIFEST) else None)


def check_there(path: Path, option: str = "") -> None:
    """Raise UserError if `path` names no folder, and no best checkpoint of a run. option: whose value it is."""
    if os.path.lexists(path) or run_of_best(path):
        return
    hint = did_you_mean(path.name, [BEST]) if os.path.isdir(path.parent / "checkpoints") else meant(path)
    reason = f"{f'--{option} ' if option else ''}{path}: no such folder{hint}"
    raise UserError(reason, "give the folder of a run, RUN/best, or one of its checkpoints", option=option)


def meant(path: Path) -> str:
    """` (did you mean X?)` if a folder next to `path`, or of a run, has a name like its; else an empty string."""
    for folder in (path.parent, RUNS):
        with contextlib.suppress(OSError):  # a folder that is missing, or may not be listed
            names = [child.name for child in folder.iterdir() if os.path.isdir(child)]
            if hint := did_you_mean(path.name, names, "" if folder == path.parent else f"{RUNS}/"):
                return printable(hint)
    return ""


def next_number(folder: Path) -> int:
    """The number of the next checkpoint in a folder: above those of all others."""
    return 1 + max((entry.written for entry in entries(folder)), default=0)


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint's files were when it was written: the content of manifest.json."""

    sha256: dict[str, str]
    """Of each file, in hexadecimal digits, by name."""
    bytes: dict[str, int]
    """Of each file."""
    path: Path = Path()
    """Folder of the checkpoint."""

    def files_of(self, stem: str) -> tuple[str, ...]:
        """The files with the arrays of WEIGHTS or OPTIMIZER, in order. Raises Damaged if it does not list them."""
        count = sum(name.startswith(f"{stem}-") for name in self.sha256)
        return self._listed(stem, array_files(stem, count or 1))

    @property
    def rank_files(self) -> tuple[str, ...]:
        """The files with what ranks 1, 2, ... have by themselves; none where they have nothing."""
        count = sum(name.startswith("rank-") for name in self.sha256)
        return self._listed("ranks", tuple(map(rank_file, range(1, count + 1))))

    def _listed(self, what: str, names: tuple[str, ...]) -> tuple[str, ...]:
        if not self.sha256.keys() >= set(names):
            raise Damaged(self.path, f"{MANIFEST} does not list all files of the {what}")
        return names

    @property
    def array_files(self) -> tuple[str, ...]:
        """All files with arrays. Raises Damaged if it does not list them."""
        return (*self.files_of(WEIGHTS), *self.files_of(OPTIMIZER), *self.rank_files)

    def check(self, name: str, digest: str, size: int) -> None:
        """Raise Damaged unless a file has this checksum and size (in bytes)."""
        if size != (written := self.bytes.get(name)):
            raise Damaged(self.path, f"{name} has {size} bytes, of {written!r:.80} that were written")
        if digest != self.sha256.get(name):
            raise Damaged(self.path, f"{name} is not what was written (its SHA-256 differs from that in {MANIFEST})")


def array_files(stem: str, count: int) -> tuple[str, ...]:
    """The names of the files over which the arrays of WEIGHTS or OPTIMIZER are divided."""
    if count == 1:
        return (f"{stem}.safetensors",)
    return tuple(f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))


def rank_file(rank: int) -> str:
    """The name of the file with what a rank has by itself."""
    return f"rank-{rank:05d}.safetensors"


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint in folder `path`. Raises Damaged if there is none."""
    return replace(read_record(path / MANIFEST, Manifest, MAX_BYTES), path=path)


def read_state(manifest: Manifest) -> State:
    """The content of state.json. Raises Damaged if it was changed, or has values that no run writes."""
    path = manifest.path / STATE
    try:
        content = read_limited(path, MAX_BYTES)
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror})") from None
    manifest.check(STATE, hashlib.sha256(content).hexdigest(), len(content))
    return decoded(path, content, State)


def is_whole(path: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    try:
        manifest = read_manifest(path)
        verify(manifest, (*manifest.array_files, STATE))
        return True
    except Damaged:
        return False


def verify(manifest: Manifest, names: Iterable[str]) -> None:
    """Raise Damaged unless these files are as they were written. They may be larger than the memory."""
    for name in names:
        try:
            digest, size = _digest(manifest.path / name)
        except (OSError, ValueError) as error:  # such as a null byte in its name
            raise Damaged(manifest.path, f"{name!r:.80} cannot be read ({error})") from None
        manifest.check(name, digest, size)


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 and bytes of a file."""
    digest, size, chunk = hashlib.sha256(), 0, bytearray(CHUNK_BYTES)
    with open_regular(path) as file:
        while count := file.readinto(chunk):
            digest.update(memoryview(chunk)[:count])
            size += count
    return digest.hexdigest(), size


def entry_of(path: Path) -> Entry | None:
    """What state.json says of a checkpoint; None if it is damaged."""
    try:
        state = read_state(read_manifest(path))
    except Damaged:
        return None
    return Entry(path, state.position.step, _order(state.score), state.history.written, state.score_choice)
