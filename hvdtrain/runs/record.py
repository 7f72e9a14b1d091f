"""A run's folder, `runs/<name>/`, and its `config.json`: options, versions and host, which other commands read."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config
from hvdtrain.config.record import to_record
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Learner
from hvdtrain.system import rank_info, versions
from hvdtrain.system.files import write_atomically

THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "MXNET_CPU_WORKER_NTHREADS",
)
"""Environment variables that say how many threads the frameworks compute with."""


def choose_folder(config: Config, runtime: RuntimeOptions, size: int, resumed: Path | None) -> Path:
    """Create the folder of this run; a resumed run keeps its own, unless it is given another name.

    size: number of ranks. resumed: the folder of the run to resume, if any. Raises UserError if the folder of a new
    run exists already, or cannot be created.
    """
    if resumed and (runtime.auto_resume or not runtime.name):
        return resumed
    stamp = time.strftime("%Y%m%d-%H%M%S")
    data = Path(config.data).name
    folder = runtime.runs / (runtime.name or f"{data}-{config.framework}-{config.strategy}-np{size}-{stamp}")
    try:
        folder.mkdir(parents=True, exist_ok=runtime.auto_resume or not runtime.name)
    except FileExistsError:
        raise UserError(f"{folder} exists", f"choose another --name, or resume it with --resume {folder}") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be created ({error.strerror})", "choose another folder with --runs") from None
    return folder


def write_options(folder: Path, config: Config, runtime: RuntimeOptions, learner: Learner) -> None:
    """Write `config.json`. A run that is resumed in its own folder keeps the previous one as `config-<number>.json`.

    Raises OSError.
    """
    path = folder / "config.json"
    if path.exists():
        path.rename(folder / f"config-{len(list(folder.glob('config*.json')))}.json")
    write_json(
        path,
        {
            "config": to_record(config),
            "runtime": to_record(runtime),
            "ranks": learner.group.size,
            "devices": learner.devices,
            "device": learner.device,
            "versions": versions.installed(),
            "host": host(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object atomically. Raises OSError."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def host() -> dict[str, Any]:
    """This host: name, system, processor, cores that this process may use, and its thread settings."""
    return {
        "name": rank_info.host_name(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        **{name: os.environ.get(name, "") for name in THREAD_SETTINGS},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
