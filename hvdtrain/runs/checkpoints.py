"""Checkpoints on disk: safetensors beside a manifest of SHA-256 sums. Knows no framework and no rank.

A checkpoint is a folder `step-00000042` that appears whole or not at all: it is written under another name, every
file and the folder flushed to disk, then renamed, and the folder above flushed. So a kill at any moment leaves the
checkpoints before it as they were. Reading checks every sum; a damaged checkpoint is told from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import stat
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.networks.description import Network, Weights
from hvdtrain.networks.registry import NETWORKS

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")
UNFINISHED = ".writing-"
LARGEST = 1 << 28
"""Bytes of a checkpoint's file that are read; that of the largest network here has less than 1 MB."""
BROKEN = (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError,
)  # fmt: skip
"""What reading may raise where a file is not what was written: it may be anybody's."""


class Damaged(HvdtrainError):
    """A checkpoint that is not what was written."""


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write `folder/step-NNNNNNNN`, then remove all but the newest `keep` whole ones and the best.

    Raises OSError where the disk does not take it; older checkpoints are untouched then. The folder above has to be
    there: where a shared disk went away, a new one in its place would hide the loss.
    """
    folder.mkdir(exist_ok=True)
    final = folder / f"step-{checkpoint.position.step:08d}"
    unfinished = folder / f"{UNFINISHED}{final.name}-{os.getpid()}"
    for stale in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(stale, ignore_errors=True)
    unfinished.mkdir()
    contents = _contents(checkpoint)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    contents[MANIFEST] = json.dumps({"sha256": sums, "step": checkpoint.position.step}, indent=1).encode()
    for name, data in contents.items():
        _write(unfinished / name, data)
    _flush(unfinished)
    _replace(unfinished, final)
    _flush(folder)
    _prune(folder, keep, newest=final)
    return final


def _contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    state = asdict(checkpoint)
    del state["weights"]
    state["optimizer"] = checkpoint.optimizer._replace(arrays={})._asdict()
    return dict(
        zip(
            FILES,
            (
                to_bytes(checkpoint.weights),
                to_bytes(checkpoint.optimizer.arrays),
                json.dumps(state, indent=1).encode(),
            ),
            strict=True,
        )
    )


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(unfinished: Path, final: Path) -> None:
    """Give the folder its name; one of this step from before a resume makes way, and is gone the moment after."""
    old = _set_aside(final) if final.exists() else None
    unfinished.rename(final)
    if old:
        shutil.rmtree(old, ignore_errors=True)


def _set_aside(path: Path) -> Path:
    """Take a checkpoint's name away in one move, so that none is ever seen half removed."""
    aside = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}-old")
    return path.rename(aside)


def _flush(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prune(folder: Path, keep: int, newest: Path) -> None:
    """Remove old checkpoints, once the newest one is proven readable."""
    load(newest)
    steps = listed(folder)
    best = max(steps, key=lambda path: (_score(path), path.name))
    for path in steps[:-keep]:
        if path != best:
            shutil.rmtree(_set_aside(path), ignore_errors=True)


def listed(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    # os.path takes what cannot even be a path for one that is not there; pathlib raises.
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if os.path.isdir(folder) else []


def _score(path: Path) -> float:
    try:
        return float(json.loads(_read(path / "state.json"))["score"])
    except BROKEN:
        return -1.0


def load(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`. Raises Damaged, with the reason, where it is not what was written."""
    contents = _verified(path)
    try:
        weights, arrays = (_arrays(contents[name]) for name in FILES[:2])
        state = json.loads(contents["state.json"])
        state["optimizer"] = OptimizerState(**{**state["optimizer"], "arrays": arrays})
        state["position"] = Position(**state["position"])
        state["classes"] = tuple(state["classes"])
        found = Checkpoint(weights=weights, **state)
        _check(found)
        return found
    except BROKEN as error:
        raise Damaged(f"{path}: written by another version of hvdtrain, or damaged ({error})") from None


def _check(found: Checkpoint) -> None:
    """Raise ValueError where a value is none that `save` writes; the sums do not tell who wrote it."""
    optimizer = found.optimizer
    counts = (*vars(found.position).values(), optimizer.updates)
    words = (found.model, found.framework, found.optimizer_name, found.data, *found.classes)
    if (
        not all(type(count) is int and count >= 0 for count in counts)
        or not all(isinstance(word, str) for word in words)
        or not all(type(number) in (int, float) and math.isfinite(number) for number in (found.score, optimizer.scale))
        or not isinstance(optimizer.extra, dict)
    ):
        raise ValueError("state.json holds what no run writes")


def network(path: Path, saved: Checkpoint) -> Network:
    """The network whose weights these are. Raises UserError where the checkpoint at `path` fits none that is here."""
    known = NETWORKS.get(saved.model)
    shapes = {name: value.shape for name, value in saved.weights.items()}
    if not known or shapes != dict(known.parameters()) or len(saved.classes) != known.classes:
        raise UserError(
            f"{path}: its weights and classes are not those of {saved.model!r:.80}; give a checkpoint of a run"
        )
    return known


def _arrays(data: bytes) -> Weights:
    return {name: np.array(value) for name, value in from_bytes(data).items()}


def _verified(path: Path) -> dict[str, bytes]:
    """The files of a checkpoint, each with the sum that the manifest gives it."""
    try:
        sums = dict(json.loads(_read(path / MANIFEST))["sha256"])
        contents = {name: _read(path / name) for name in FILES}
    except BROKEN as error:
        raise Damaged(f"{path}: incomplete ({error})") from None
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != sums.get(name):
            raise Damaged(f"{path}: {name} is not what was written (its SHA-256 differs from {MANIFEST})")
    return contents


def _read(path: Path) -> bytes:
    """A whole file. Raises ValueError where it is no file, or one that no checkpoint here has."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
        raise ValueError(f"{path.name} is no file of at most {LARGEST} bytes")
    return path.read_bytes()


def newest(path: Path) -> tuple[Path, Checkpoint]:
    """The checkpoint at `path`, or the newest whole one of the run in that folder; damaged ones are logged.

    Raises UserError where there is none.
    """
    folder = path / "checkpoints" if os.path.isdir(path / "checkpoints") else path
    candidates = [path] if os.path.isfile(path / MANIFEST) else listed(folder)[::-1]
    for candidate in candidates:
        try:
            return candidate, load(candidate)
        except Damaged as error:
            log.warning("damaged checkpoint: %s", error)
    raise UserError(
        f"{path}: no whole checkpoint there ({len(candidates)} damaged); give a run's folder or one of its checkpoints"
    )
