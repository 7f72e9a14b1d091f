"""Checkpoints on disk: safetensors files with a manifest of their SHA-256 sums. Independent of frameworks and ranks.

Arrays are written and read one file after the other (`runs.shards`), so that memory holds them only once.

A checkpoint is a folder `step-00000042` that appears complete or not at all: it is written under another name, each
file and the folder are flushed to disk, it is renamed, and the parent folder is flushed. So a kill at any moment
leaves earlier checkpoints intact. Reading verifies every sum, so damage is detected.

A new checkpoint takes no other's place. Those that it does not continue, because training resumed from an older one,
are moved before to the run's folder `branch-1`, `branch-2`, ..., where nothing resumes from them unless it is asked to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Checkpoint, OptimizerState, Position
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.record import shaped_from_record
from hvdtrain.runs import shards
from hvdtrain.runs.best import best_checkpoints, choice_of
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import (
    BEST,
    BROKEN,
    FILES,
    MANIFEST,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    Damaged,
    Entry,
)
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.text import did_you_mean, printable

__all__ = ["FILES", "MANIFEST", "Damaged", "load", "network", "newest", "save"]

log = logging.getLogger(__name__)

UNFINISHED = ".writing-"
LARGEST_COUNT = 1 << 62
OF_RANK = "rank-"
"""In the optimizer's files, `rank-1/` begins the names of rank 1's arrays, where ranks have optimizers of their own."""


def save(folder: Path, checkpoint: Checkpoint, keep: int, parent: Entry | None = None) -> Path:
    """Write `folder/step-NNNNNNNN`, and remove all but the newest `keep` whole checkpoints and the best.

    parent: the checkpoint that training continues, of this run or another; by default the newest one in `folder`.
    Raises OSError if the disk does not accept it, Damaged if it cannot be read back; older checkpoints are untouched
    then. The parent of `folder` must exist: where a shared disk was unmounted, a new folder in its place would hide
    the loss.
    """
    folder.mkdir(exist_ok=True)
    for stale in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(stale, ignore_errors=True)
    history = {"written": checkpoint_folder.next_number(folder), "parent": f"{parent.path}" if parent else ""}
    final = _free_path(folder, f"step-{checkpoint.position.step:08d}")
    unfinished = folder / f"{UNFINISHED}{final.name}-{os.getpid()}"
    try:
        unfinished.mkdir()
        _write_files(unfinished, checkpoint, history)
    except Exception:
        shutil.rmtree(unfinished, ignore_errors=True)  # the disk may be full
        raise
    _set_branch_aside(folder, parent)
    unfinished.rename(final)
    _flush_folder(folder)
    _check_written(final, checkpoint)
    _prune(folder, keep, final)
    return final


def _free_path(folder: Path, name: str) -> Path:
    """`name`, or `name-2`, ... if there is such a checkpoint, of another line or before steps were renumbered."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder / free for free in names if not (folder / free).exists())


def _write_files(folder: Path, checkpoint: Checkpoint, history: dict[str, Any]) -> None:
    """Write the files of a checkpoint, and flush them and their names to disk."""
    state = {field.name: getattr(checkpoint, field.name) for field in dataclasses.fields(checkpoint)}
    weights, others = state.pop("weights"), state.pop("other_ranks")
    state["optimizer"] = checkpoint.optimizer._replace(arrays={})._asdict()
    state["position"] = vars(checkpoint.position)
    arrays = dict(checkpoint.optimizer.arrays)
    for rank, of_rank in enumerate(others, 1):
        arrays |= {f"{OF_RANK}{rank}/{name}": array for name, array in of_rank.items()}
    text = json.dumps({**state, "history": history}, indent=1).encode()
    written = {**shards.write(folder, WEIGHTS, weights), **shards.write(folder, OPTIMIZER, arrays)}
    written[STATE] = hashlib.sha256(text).hexdigest(), len(text)
    _write(folder / STATE, text)
    sums, sizes = ({name: values[i] for name, values in written.items()} for i in (0, 1))
    manifest = {"sha256": sums, "bytes": sizes, "step": checkpoint.position.step}
    _write(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    _flush_folder(folder)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _set_branch_aside(folder: Path, parent: Entry | None) -> None:
    """Move checkpoints that the next one does not continue, or are too damaged to tell, to a branch of the run.

    parent: that of `save`. What is newer than it was written by training that did not go on.
    """
    known = checkpoint_folder.entries(folder)
    if parent:
        is_of_run = parent.path.parent.parent == folder.parent
        known = [entry for entry in known if is_of_run and entry.written <= parent.written]
    left = sorted(set(checkpoint_folder.paths(folder)) - {entry.path for entry in known})
    if not left:
        return
    branch = _free_path(folder.parent, f"branch-{len(checkpoint_folder.branches(folder.parent)) + 1}")
    branch.mkdir()
    for path in left:
        path.rename(branch / path.name)
    log.warning("%s keeps %d checkpoint(s) that training does not continue", branch, len(left))


def _prune(folder: Path, keep: int, checked: Path) -> None:
    """Remove old checkpoints. Damaged ones do not count, so that they take no whole one's place.

    checked: one that is known to be whole. Of the others, which may be large, no more than needed are read.
    """
    known = checkpoint_folder.entries(folder)
    if len(known) <= keep:
        return
    is_whole = functools.cache(lambda entry: entry.path == checked or checkpoint_folder.is_whole(entry.path))
    newest = list(itertools.islice(filter(is_whole, reversed(known)), keep))
    best = next(filter(is_whole, checkpoint_folder.best_first(known)), None)
    for entry in known:
        if entry.written < newest[-1].written and entry != best:
            # Renamed first, so that none is seen while parts of it are missing.
            aside = entry.path.with_name(f"{UNFINISHED}{entry.path.name}-{os.getpid()}-old")
            shutil.rmtree(entry.path.rename(aside), ignore_errors=True)


def _check_written(path: Path, written: Checkpoint) -> None:
    """Raise Damaged if the checkpoint in folder `path` is not what was written, or is what `load` refuses.

    Reads the files without keeping their arrays, which the sums prove to be those that were written.
    """
    manifest = checkpoint_folder.read_manifest(path)
    checkpoint_folder.verify(manifest, manifest.sums)
    with _damaged_if_broken(path):
        arrays = [written.optimizer.arrays, *written.other_ranks]
        _checkpoint(checkpoint_folder.read_state(manifest), written.weights, arrays)


def load(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`. Raises Damaged, with the reason, if it is not what `save` wrote."""
    manifest = checkpoint_folder.read_manifest(path)
    with _damaged_if_broken(path):
        state = checkpoint_folder.read_state(manifest)
        shards.check_memory(manifest, (WEIGHTS, OPTIMIZER))
        weights = shards.read(manifest, WEIGHTS)
        return _checkpoint(state, weights, _by_rank(shards.read(manifest, OPTIMIZER)))


@contextlib.contextmanager
def _damaged_if_broken(path: Path) -> Iterator[None]:
    """Turn what reading a file of a checkpoint may raise into Damaged."""
    try:
        yield
    except (SafetensorError, MemoryError, *BROKEN) as error:
        raise Damaged(f"{path}: damaged, or written by another version of hvdtrain ({error})") from None


def _checkpoint(state: dict[str, Any], weights: Weights, arrays: list[Weights]) -> Checkpoint:
    """The checkpoint with this state.json and these arrays. Raises one of BROKEN for values that `save` never writes.

    arrays: the optimizer's, of rank 0 and of the other ranks if they have their own.
    """
    state = {name: value for name, value in state.items() if name != "history"}  # read by checkpoint_folder
    state["optimizer"] = OptimizerState(**{**state["optimizer"], "arrays": arrays[0]})
    at = state["position"]
    state["position"] = Position(**{"best_epoch": at["epoch"], **at})  # of earlier versions, which counted no scores
    state["classes"] = tuple(state["classes"])
    checkpoint = Checkpoint(weights=weights, other_ranks=tuple(arrays[1:]), **state)
    _check_values(checkpoint)
    return checkpoint


def _by_rank(arrays: Weights) -> list[Weights]:
    """The optimizer's arrays of rank 0, and of the other ranks if they have their own."""
    by_rank: dict[int, Weights] = {0: {}}
    for name, array in arrays.items():
        rank, _, of_rank = name.removeprefix(OF_RANK).partition("/") if name.startswith(OF_RANK) else ("0", "", name)
        by_rank.setdefault(int(rank), {})[of_rank] = array
    return [by_rank[rank] for rank in range(len(by_rank))]


def _check_values(saved: Checkpoint) -> None:
    """Raise ValueError for a value that `save` never writes; correct sums do not prove who wrote it."""
    optimizer = saved.optimizer
    position = {name: value for name, value in vars(saved.position).items() if name not in ("best", "best_by")}
    counts = (*position.values(), optimizer.updates)
    numbers = (saved.score, saved.position.best, optimizer.scale)
    texts = (
        saved.model,
        saved.framework,
        saved.optimizer_name,
        saved.data,
        saved.init,
        saved.score_choice,
        saved.position.best_by,
        *saved.classes,
    )
    if (
        not all(type(count) is int and 0 <= count < LARGEST_COUNT for count in counts)
        or not all(isinstance(text, str) for text in texts)
        or not all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        or not _holds_numbers(optimizer.extra)
        or not isinstance(saved.network, dict)
        or not _is_arithmetic(saved.arithmetic)
        or not isinstance(saved.network.get("task", ""), str)
        or not all(array.dtype.kind in "fiubc" for array in optimizer.arrays.values())
    ):
        raise ValueError("state.json has values that no run writes")


def _is_arithmetic(values: Any) -> bool:
    """Whether it may be a record of `training.arithmetic`: numbers, texts, and tables of texts."""
    if not isinstance(values, dict):
        return False
    counts, tables = ("shards", "threads"), ("variables", "versions")
    texts = [value for name, value in values.items() if name not in counts + tables]
    for table in (values.get(name, {}) for name in tables):
        if not isinstance(table, dict):
            return False
        texts += table.values()
    return all(type(values.get(name, 0)) is int for name in counts) and all(isinstance(text, str) for text in texts)


def _holds_numbers(values: Any) -> bool:
    """Whether it is a dictionary of finite numbers, or of such dictionaries."""
    if not isinstance(values, dict):
        return False
    numbers = [value for value in values.values() if type(value) in (int, float)]
    nested = [value for value in values.values() if type(value) not in (int, float)]
    return all(map(math.isfinite, numbers)) and all(map(_holds_numbers, nested))


def network(path: Path, saved: Checkpoint) -> ShapedNetwork:
    """The network that a checkpoint, read from `path`, belongs to.

    Raises UserError if it belongs to a task, or its weights are not those of the network.
    """
    if "task" in saved.network:
        remedy = f'use hvdtrain.load("{path}")' if is_reference(saved.model) else "load its weights in code of your own"
        raise UserError(f"{path}: is of {saved.model!r:.80}, not of a network as data", remedy)
    try:
        network = shaped_from_record(saved.network, saved.model)
        network.check(saved.weights)
        if network.classes != len(saved.classes):
            raise ValueError(f"it has {network.classes} classes, of which {len(saved.classes)} have names")
        return network
    except (ValueError, UserError) as error:
        reason = error.reason if isinstance(error, UserError) else str(error)
        raise UserError(
            f"{path}: its weights are not those of its network ({printable(reason):.200})",
            "give the checkpoint of a run",
        ) from None


def newest(path: Path) -> tuple[Path, Checkpoint]:
    """The checkpoint at `path`, or the newest whole one of the run in that folder.

    path: that folder, or `best` below it for the whole one of the best score (`runs.best`). Damaged ones are logged.
    Raises UserError if none is whole.
    """
    run = checkpoint_folder.run_of_best(path)
    place = run or path
    folder = place / "checkpoints" if os.path.isdir(place / "checkpoints") else place
    if run:
        candidates = [entry.path for entry in best_checkpoints(run, choice_of(path))]
    else:
        candidates = [path] if os.path.isfile(path / MANIFEST) else _candidates(folder)
    for candidate in candidates:
        try:
            return candidate, load(candidate)
        except Damaged as error:
            log.warning("damaged checkpoint: %s", error)
    meant = "" if os.path.lexists(path) else did_you_mean(path.name, [BEST])
    raise UserError(
        f"{path}: no intact checkpoint there ({len(candidates)} damaged){meant}",
        "give a run's folder or one of its checkpoints",
    )


def _candidates(folder: Path) -> list[Path]:
    """The checkpoints to try: first those too damaged to know their order, to report them, then the newest first."""
    known = [entry.path for entry in checkpoint_folder.entries(folder)]
    return [path for path in checkpoint_folder.paths(folder) if path not in known] + known[::-1]
