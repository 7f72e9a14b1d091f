"""Checkpoints on disk: safetensors files with a manifest of their SHA-256 sums. Independent of frameworks and ranks.

A checkpoint is a folder `step-00000042` that appears complete or not at all: it is written under another name, each
file and the folder are flushed to disk, it is renamed, and the parent folder is flushed. So a kill at any moment
leaves earlier checkpoints intact. Reading verifies every sum, so damage is detected.

Each rank that has a state of its own writes it to a file of its own, if its host reaches the folder.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Checkpoint, OptimizerState
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.record import shaped_from_record
from hvdtrain.runs.best import best_checkpoints, choice_of
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import (
    FILES,
    MANIFEST,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    CheckpointFacts,
    Manifest,
    array_files,
    rank_file,
)
from hvdtrain.system.files import Damaged, read_limited
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.resources import memory_bytes
from hvdtrain.system.text import printable

__all__ = ["FILES", "MANIFEST", "Damaged", "load", "network", "newest", "save"]

log = logging.getLogger(__name__)

UNFINISHED = ".writing-"
FILE_BYTES = 1 << 30
"""Bytes of arrays in a file; more only if they are one array, or a rank's own."""
TYPES = frozenset(np.dtype(code).name for code in "?bBhHiIqQefdF")
"""NumPy's types that files of safetensors have."""
FACTS = tuple(CheckpointFacts.__dataclass_fields__)

FileHash = tuple[str, int]
"""SHA-256 and bytes of a file."""


def begin(folder: Path, step: int) -> Path:
    """Make the folder in which the checkpoint of a step is written, and remove what a killed process has left.

    Raises OSError. The parent of `folder` must exist: where a shared disk was unmounted, a new folder in its place
    would hide the loss.
    """
    folder.mkdir(exist_ok=True)
    for stale in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(stale, ignore_errors=True)
    draft = folder / f"{UNFINISHED}step-{step:08d}-{os.getpid()}"
    draft.mkdir()
    return draft


def write_own(draft: Path, rank: int, arrays: Weights) -> FileHash | None:
    """On another rank than 0: write what it has by itself into the folder that rank 0 has made by `begin`.

    None where this host does not reach that folder, or the disk does not accept it: rank 0 then writes it.
    """
    try:
        return _write_arrays(draft / rank_file(rank), arrays)
    except OSError:
        return None


def save(
    folder: Path,
    checkpoint: Checkpoint,
    keep: int,
    draft: Path | None = None,
    own: Sequence[FileHash | None] = (),
) -> Path:
    """Write `folder/step-NNNNNNNN`, and remove all but the newest `keep` whole checkpoints and the best.

    draft: from `begin`, which is called by default. own: of ranks 1, 2, ..., what `write_own` returned, in place of
    their arrays in the checkpoint. Raises OSError if the disk does not accept it, Damaged if it cannot be read back;
    other checkpoints are untouched then.
    """
    draft = draft or begin(folder, checkpoint.position.step)
    final, number = folder / f"step-{checkpoint.position.step:08d}", checkpoint_folder.next_number(folder)
    if final.exists():  # it is damaged, or was written before steps were renumbered
        names = (folder / f"{final.name}-{suffix}" for suffix in itertools.count(number))
        final = next(path for path in names if not path.exists())
    try:
        _write_files(draft, checkpoint, number, own)
        _check_written(draft, own)
    except Exception:
        shutil.rmtree(draft, ignore_errors=True)  # the disk may be full
        raise
    draft.rename(final)
    _flush_folder(folder)
    _prune(folder, keep, final)
    return final


def _write_files(folder: Path, checkpoint: Checkpoint, number: int, own: Sequence[FileHash | None]) -> None:
    """Write the files of a checkpoint, the manifest last, and flush them and their names to disk."""
    hashes = {rank_file(rank): written for rank, written in enumerate(own, 1) if written}
    for rank, arrays in enumerate(checkpoint.other_ranks, 1):
        if rank_file(rank) not in hashes:
            hashes[rank_file(rank)] = _write_arrays(folder / rank_file(rank), arrays)
    for stem, arrays in ((WEIGHTS, checkpoint.weights), (OPTIMIZER, checkpoint.optimizer.arrays)):
        parts = _divided(arrays)
        for name, part in zip(array_files(stem, len(parts)), parts, strict=True):
            hashes[name] = _write_arrays(folder / name, part)
    optimizer = checkpoint.optimizer
    state = {
        **{name: getattr(checkpoint, name) for name in FACTS},
        "optimizer": {"scale": optimizer.scale, "updates": optimizer.updates, "extra": optimizer.extra},
        "position": vars(checkpoint.position),
        "history": {"written": number},
    }
    hashes[STATE] = _write(folder / STATE, json.dumps(state, indent=1).encode())
    sums, sizes = ({name: values[i] for name, values in hashes.items()} for i in (0, 1))
    manifest = {"sha256": sums, "bytes": sizes, "step": checkpoint.position.step}
    _write(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    _flush_folder(folder)


def _divided(arrays: Weights) -> list[Weights]:
    """The arrays of each file, in their order; one empty file if there are none."""
    parts: list[Weights] = [{}]
    size = 0
    for name, array in arrays.items():
        if parts[-1] and size + array.nbytes > FILE_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = array
        size += array.nbytes
    return parts


def _write_arrays(path: Path, arrays: Weights) -> FileHash:
    """Write a file of arrays. Raises UserError for one of a type that safetensors lacks."""
    for name, array in arrays.items():
        if array.dtype.name not in TYPES:
            raise UserError(f"parameter {name} has type {array.dtype.name}", f"use one of {', '.join(sorted(TYPES))}")
    return _write(path, safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()}))


def _write(path: Path, data: bytes) -> FileHash:
    with open(path, "wb") as file:  # a rank may have left a part of it
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest(), len(data)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prune(folder: Path, keep: int, checked: Path) -> None:
    """Remove old checkpoints. Damaged ones do not count, so that they take no whole one's place.

    What cannot be read now stays: it may be whole, or something else.

    checked: one that is known to be whole. Of the others, which may be large, no more than needed are read.
    """
    known = checkpoint_folder.entries(folder)
    is_whole = functools.cache(lambda entry: entry.path == checked or checkpoint_folder.is_whole(entry.path))
    newest = list(itertools.islice(filter(is_whole, reversed(known)), keep))
    if len(newest) < keep:
        return
    best = next(filter(is_whole, checkpoint_folder.best_first(known)), None)
    kept = {entry.path for entry in known if entry.written >= newest[-1].written or entry == best}
    for path in {entry.path for entry in known} - kept:
        # Renamed first, so that none is seen while parts of it are missing.
        aside = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}-old")
        shutil.rmtree(path.rename(aside), ignore_errors=True)


def _check_written(path: Path, own: Sequence[FileHash | None]) -> None:
    """Raise Damaged if the checkpoint in folder `path` is not what was written, or is what `load` refuses.

    Reads the files without keeping their arrays, which the sums prove to be those that were written; of those that
    other ranks have written, only their sizes, as reading them may take a slow network.
    """
    manifest = checkpoint_folder.read_manifest(path)
    of_others = {rank_file(rank) for rank, hashed in enumerate(own, 1) if hashed}
    checkpoint_folder.verify(manifest, manifest.sha256.keys() - of_others)
    for name in of_others:
        if not os.path.isfile(path / name) or os.path.getsize(path / name) != manifest.bytes[name]:
            raise Damaged(path, f"{name} is not what its rank has written")
    checkpoint_folder.read_state(manifest)


def load(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`. Raises Damaged, with the reason, if it is not what `save` wrote."""
    manifest = checkpoint_folder.read_manifest(path)
    state = checkpoint_folder.read_state(manifest)
    try:
        _check_memory(manifest)
        weights = _read(manifest, manifest.files_of(WEIGHTS))
        first = _read(manifest, manifest.files_of(OPTIMIZER))
        others = tuple(_read(manifest, [name]) for name in manifest.rank_files)
    except (SafetensorError, OSError, ValueError, KeyError, MemoryError) as error:
        raise Damaged(path, f"damaged, or written by another version of hvdtrain ({error})") from None
    return Checkpoint(
        weights=weights,
        optimizer=OptimizerState(first, **vars(state.optimizer)),
        other_ranks=others,
        **{name: getattr(state, name) for name in FACTS},
    )


def _check_memory(manifest: Manifest) -> None:
    """Raise Damaged if files with arrays are larger, together, than the memory: no run here can have written them.

    Of a sparse file, that takes no disk, all bytes count.
    """
    size = sum(os.stat(manifest.path / name).st_size for name in manifest.array_files)
    if size > (memory := memory_bytes()):
        raise Damaged(manifest.path, f"has {size} bytes, and the memory of this machine {memory}")


def _read(manifest: Manifest, names: Sequence[str]) -> Weights:
    """The arrays of these files, if they are what the manifest says. They can be written to."""
    arrays: Weights = {}
    for name in names:
        content = read_limited(manifest.path / name, memory_bytes())
        manifest.check(name, hashlib.sha256(content).hexdigest(), len(content))
        part = safetensors.numpy.load(content)
        if twice := arrays.keys() & part.keys():
            raise ValueError(f"{name} has arrays of another file: {min(twice)!r:.80}")
        arrays |= part
    return arrays


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
    checkpoint_folder.check_there(path)
    candidates = _candidates(path)
    for candidate in candidates:
        try:
            return candidate, load(candidate)
        except Damaged as error:
            log.warning("damaged checkpoint: %s", error)
    damaged = f" ({len(candidates)} damaged)" if candidates else ""
    raise UserError(
        f"{path}: no intact checkpoint there{damaged}", "give a run that has one, or one of its checkpoints"
    )


def _candidates(path: Path) -> list[Path]:
    """The checkpoints to try for `newest`, in this order.

    Of a run, first those too damaged to know their order, to report them, then the newest first.
    """
    if run := checkpoint_folder.run_of_best(path):
        return [entry.path for entry in best_checkpoints(run, choice_of(path))]
    if os.path.isfile(path / MANIFEST):
        return [path]
    folder = path / "checkpoints" if os.path.isdir(path / "checkpoints") else path
    known = [entry.path for entry in checkpoint_folder.entries(folder)]
    return [path for path in checkpoint_folder.paths(folder) if path not in known] + known[::-1]


def run_to_continue(path: Path) -> Path | None:
    """The run in whose folder training goes on that resumes at `path`; None if that begins a new run.

    That is a run that is named by its folder, or by its newest checkpoint. Raises UserError for a figure of
    `RUN/best:FIGURE` that was not measured.
    """
    checkpoint_folder.check_there(path, "resume")
    run = checkpoint_folder.run_of(path)
    if not run:
        return path
    known = checkpoint_folder.entries(run / "checkpoints")
    return run if known and known[-1].path.absolute() == _candidates(path)[0].absolute() else None
