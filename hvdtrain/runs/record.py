"""A run's folder, `runs/<name>/`, as programs read it, and its `config.json`: options, versions and host."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import to_record
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Learner
from hvdtrain.runs import metrics
from hvdtrain.runs.lock import FILE as LOCK
from hvdtrain.runs.lock import RunLock, check_free, trained_by_this_program
from hvdtrain.runs.records import read
from hvdtrain.system import arithmetic, credentials, rank_info, resources, stacks
from hvdtrain.system.files import creating, read_json, write_all_atomically, write_atomically
from hvdtrain.system.python_files import is_reference, is_script
from hvdtrain.system.run_end import RunEnd, how_to_resume, run_id
from hvdtrain.system.text import to_json

THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "MXNET_CPU_WORKER_NTHREADS",
)
"""Environment variables that say how many threads the frameworks compute with."""


FINGERPRINT_DIGITS = 16
"""Of the data's fingerprint, hexadecimal, that records have."""
BEFORE_STEPS = re.compile(
    r"(config(-\d+)?|doctor|attempts|end)\.json|metrics\.(jsonl|prom)|logs|heartbeats|tensorboard|wandb|STOP"
)
"""What a run's folder may hold before the first step, besides its locks."""
AT_START = "members"
"""The only kind of record of metrics.jsonl that is written before the first step."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a finished run."""

    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`: test loss and metrics, steps, speed and more."""
        return read_json(self.folder / "result.json")

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`: loss, learning rate and speed of each logging step, and each evaluation."""
        return metrics.read(self.folder / "metrics.jsonl")


def is_finished(folder: Path) -> bool:
    """Whether the last job that trained the run of a folder has written its result, and has ended as it should."""
    end = RunEnd.read(folder)
    return bool(end and end.status == "finished") and (folder / "result.json").is_file()


def auto_resumed_folder(runtime: RuntimeOptions) -> Path:
    """The folder of the run that --resume auto names, which may be new. Raises UserError if it cannot be created."""
    for folder in (runtime.runs / name for name in _names(runtime)):
        with creating(f"{folder} cannot be created", folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not trained_by_this_program(folder):
                break
    return folder


def _names(runtime: RuntimeOptions, default: str = "") -> Iterator[str]:
    """Names for a run: that of --name only, else several, as a program may train several times."""
    name = runtime.name or default
    yield name
    if not runtime.name or runtime.name == os.environ.get(rank_info.RUN_NAME):
        yield from (f"{name}-{number}" for number in itertools.count(2))


def create_folder(config: Config, runtime: RuntimeOptions, size: int, lock: RunLock) -> Path:
    """Create the folder of a new run, and acquire its lock; without --name, one that no other job of this second has.

    A run of that name that has ended before its first step is replaced.
    size: number of ranks. Raises UserError if there is another run of that name, or the folder cannot be created.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    default = f"{_trained(config)}-{config.framework}-{config.strategy}-np{size}-{stamp}"
    with creating(f"{runtime.runs} cannot be created", runtime.runs):
        runtime.runs.mkdir(parents=True, exist_ok=True)
    for folder in (runtime.runs / name for name in _names(runtime, default)):
        with creating(f"{folder} cannot be created", folder), contextlib.suppress(FileExistsError):
            folder.mkdir()
            lock.acquire(folder)
            return folder
    with creating(f"{folder} cannot be created", folder):
        if _is_abandoned(folder):
            lock.acquire(folder)
            if _is_abandoned(folder):  # still: until now another job may have trained it
                _clear(folder)
                return folder
        check_free(folder)
    raise UserError(f"{folder} exists", f"choose another --name{how_to_resume(folder, ', or ')}")


def _is_abandoned(folder: Path) -> bool:
    """Whether all that a folder holds is of a run that made no step, as far as its files say; or it holds nothing.

    Whether that run has ended, its lock says. Raises OSError if the folder cannot be read.
    """
    names = os.listdir(folder)
    others = [name for name in names if not LOCK.fullmatch(name)]
    if not all(map(BEFORE_STEPS.fullmatch, others)) or (others and len(others) == len(names)):
        return False
    end, records = RunEnd.read(folder), folder / metrics.NAME
    if end and (end.status == "finished" or (end.failure and end.failure.step is not None)):
        return False
    if os.path.exists(records) and any(record["kind"] != AT_START for record in metrics.read(records)):
        return False
    return all(read(beat, dict[str, Any]).get("rows") == 0 for beat in folder.glob("heartbeats/rank-*.json"))


def _clear(folder: Path) -> None:
    """Remove what is in a folder for which `_is_abandoned` holds, except its locks. Raises OSError."""
    for name in filter(BEFORE_STEPS.fullmatch, os.listdir(folder)):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _trained(config: Config) -> str:
    """What a run is named after: its task, its script, or the data of a network."""
    if is_reference(config.model):
        return config.model.rpartition(":")[2]
    name = Path(config.model).stem if is_script(config.model) else os.path.basename(os.path.abspath(config.data))
    return name.lstrip(".") or "data"  # lists leave out names that begin with a dot


def write_options(folder: Path, runtime: RuntimeOptions, learner: Learner, content: dict[str, Any]) -> dict[str, Any]:
    """Write `config.json`; its content.

    content: what it has besides id, runtime options, ranks, versions and host. A run that is resumed in its own folder
    keeps the previous one as `config-<number>.json`. Raises OSError.
    """
    path = folder / "config.json"
    # All are written before any is renamed, so a full disk leaves the previous one where it is.
    earlier = (folder / f"config-{number}.json" for number in itertools.count(1))
    previous = {next(one for one in earlier if not one.exists()): path.read_bytes()} if path.exists() else {}
    written = {
        "id": run_id(folder) or secrets.token_hex(8),
        **content,
        "parent": read(path, dict).get("parent", content["parent"]),
        "runtime": _recorded(runtime),
        "ranks": learner.group.size,
        "devices": learner.devices,
        "device": learner.device,
        "controller": learner.group.controller,
        "versions": stacks.installed_versions(),
        "host": host(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_all_atomically({**previous, path: _json(written)})
    return written


def _recorded(runtime: RuntimeOptions) -> dict[str, Any]:
    """Runtime options as JSON values, without a command that holds credentials: others may read the record."""
    values = to_record(runtime)
    return {**values, "on_end": "..."} if credentials.holds("", runtime.on_end) else values


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object atomically, null for NaN and infinities. Raises OSError."""
    write_atomically(path, _json(value))


def _json(value: dict[str, Any]) -> str:
    return to_json(value, indent=1) + "\n"


def host() -> dict[str, Any]:
    """This host: name, system, processor, cores that this process may use or is bound to, and its thread settings."""
    return {
        "name": rank_info.host_name(),
        "system": platform.platform(),
        "processor": arithmetic.processor().model,
        "cores": len(resources.core_binding().before),
        "bound": resources.core_binding().text,
        **{name: os.environ.get(name, "") for name in THREAD_SETTINGS},
    }
