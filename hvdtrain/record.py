"""A run's folder, `runs/<name>/`: the options, the machine, and what came out. All that later tools read of a run."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from hvdtrain.config import Config, Places, to_record
from hvdtrain.errors import UserError
from hvdtrain.learner import Learner

PACKAGES = ("hvdtrain", "horovod", "torch", "mxnet", "tensorflow", "tensorflow-cpu", "numpy", "safetensors")


def choose_folder(config: Config, places: Places, size: int, resumed: Path | None) -> Path:
    """The folder of this run, made. A resumed run goes on in its own folder, unless it is given a name.

    Raises UserError where a new run would write over an old one, or the folder cannot be made.
    """
    if resumed and (places.auto_resume or not places.name):
        return resumed
    stamp = time.strftime("%Y%m%d-%H%M%S")
    data = Path(config.data).name
    folder = places.runs / (places.name or f"{data}-{config.framework}-{config.strategy}-np{size}-{stamp}")
    try:
        folder.mkdir(parents=True, exist_ok=places.auto_resume or not places.name)
    except FileExistsError:
        raise UserError(f"{folder} exists: choose another --name, or go on with it by --resume {folder}") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); give another folder by --runs") from None
    return folder


def write_options(folder: Path, config: Config, places: Places, learner: Learner) -> None:
    """`config.json`: options, versions and host. A resumed run in its own folder keeps the older ones beside it."""
    path = folder / "config.json"
    if path.exists():
        path.rename(folder / f"config-{len(list(folder.glob('config*.json')))}.json")
    write_json(
        path,
        {
            "config": to_record(config),
            "places": to_record(places),
            "ranks": learner.group.size,
            "devices": learner.devices,
            "device": learner.device,
            "versions": versions(),
            "host": host(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write so that a reader sees the old file or the new one, never a part."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(value, indent=1) + "\n")
    unfinished.replace(path)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def host() -> dict[str, Any]:
    """The machine: name, processor, cores this process may use, and the thread settings."""
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
