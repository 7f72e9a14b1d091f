"""--model: a network as data, or a task of the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import REMEDY, recorded, run_folder
from hvdtrain.datasets.division import Division
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, Dataset
from hvdtrain.networks.description import Network
from hvdtrain.networks.record import from_record
from hvdtrain.networks.registry import find_network
from hvdtrain.system.files import read_json
from hvdtrain.system.python_files import is_reference, load_object
from hvdtrain.tasks.target import NetworkTarget, Target
from hvdtrain.tasks.user import UserTask, make_task


def load_target(config: Config, runtime: RuntimeOptions) -> tuple[Target, Dataset]:
    """What --model names, and its data: --data for a network, the task's own otherwise.

    A resumed run keeps the network of its record, whose file may have changed since. Raises UserError if there is no
    such network, task or data, or they do not fit together.
    """
    network: Network | None = None
    if runtime.resume and recorded(runtime.resume).model == config.model:
        network = recorded_network(runtime.resume, config.model)
    if network is None and is_reference(config.model):
        loaded = load_object(config.model, f"--model {config.model}")
        if not isinstance(loaded, Network):
            task = make_task(config.model, loaded, config.set, config.on_bad_row == "skip", Division.by(config))
            return dataclasses.replace(task, loader_spec=_task_loader_spec(config, task)), task.dataset
    if config.set:
        raise UserError(f"--set {config.set[0]}: {config.model} is not a task", "give --model FILE.py:CLASS")
    network = network or find_network(config.model)
    spec = _network_loader_spec(config, runtime, network)
    dataset = load_dataset(**spec)
    return NetworkTarget(network.for_data(dataset.input_shape, len(dataset.classes), config.model), spec), dataset


def load_task(name: str, settings: Sequence[str], config: Config) -> UserTask:
    """The task FILE.py:CLASS with these NAME=VALUE; runs the file. Raises UserError if there is no such task.

    config: of a run that trained it.
    """
    if not is_reference(name):
        raise UserError(f"--model {name}: is not a task", "give FILE.py:CLASS")
    return make_task(name, load_object(name, f"--model {name}"), settings, True, Division.by(config))


def load_trained_task(path: Path, saved: Checkpoint, name: str, settings: Sequence[str]) -> UserTask:
    """The task of a checkpoint, whose code is run only if the user names it: a checkpoint could name any file.

    path: the checkpoint's. name: FILE.py:CLASS. settings: NAME=VALUE; by default those of training. Raises UserError if
    it is another task.
    """
    trained, options = saved.network["task"], saved.network.get("options")
    if not name:
        raise UserError(f"{path}: belongs to the task {trained}, whose code makes the model", f"give --model {trained}")
    if not settings and isinstance(options, dict):
        settings = [f"{option}={value!r}" for option, value in options.items()]
    has_record = (run_folder(path) / "config.json").is_file()  # a checkpoint may have been copied without it
    task = load_task(name, settings, recorded(path) if has_record else Config())
    if not task.is_of(saved.network):
        raise UserError(
            f"{path}: belongs to the task {trained} with {options!r:.80}, not to {name} with "
            f"{dict(task.options)!r:.80}",
            "give --model and --set as in training",
        )
    return task


def _task_loader_spec(config: Config, task: UserTask) -> dict[str, Any]:
    """How a process that reads data loads the task's (see `datasets.worker.WorkerProcess`)."""
    return {
        "loader": f"{__name__}:load_task_data",
        "name": config.model,
        "settings": config.set,
        "skip_bad_rows": config.on_bad_row == "skip",
        "expected": task.dataset.fingerprint,
        "division": Division.by(config),
    }


def load_task_data(
    name: str, settings: list[str], skip_bad_rows: bool, expected: str, division: tuple[float, float, int]
) -> Dataset:
    """The data of a task, in another process than its rank's.

    expected: the fingerprint that the rank found. division: see `make_task`. Raises UserError if the data are others
    here.
    """
    kind = load_object(name, f"--model {name}")
    dataset = make_task(name, kind, settings, skip_bad_rows, Division(*division)).dataset
    if dataset.fingerprint != expected:
        raise UserError(
            f"--model {name}: data() returned other rows in a process of --workers than in its rank",
            "seed the random numbers with which it makes them, or use --workers 0",
        )
    return dataset


def _network_loader_spec(config: Config, runtime: RuntimeOptions, network: Network) -> dict[str, Any]:
    """The arguments of `load_dataset` for a network, as JSON has them."""
    return {
        "data": config.data,
        "image_shape": network.input_shape,
        "offline": runtime.offline,
        "image_size": config.resized,
        "skip_bad_rows": config.on_bad_row == "skip",
        "name": f"--data {config.data}",
        "split": config.split,
        "validation": config.validation,
        "seed": config.seed,
        "label": config.label,
        "columns": [name for name in config.columns.split(",") if name],
        "as_images": True,
    }


def recorded_network(path: Path, model: str) -> Network | None:
    """The network of the run at `path`; None if it trained a task.

    model: names it in messages. Raises UserError if the run's record has neither.
    """
    try:
        record = read_json(run_folder(path) / "config.json")["network"]
        return None if "task" in record else from_record(record["description"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"--resume {path}: no valid network {model} in its config.json ({error})", REMEDY) from None
