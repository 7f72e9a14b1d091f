"""--model: a network as data, or a task of the user's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import reading_record, recorded, run_folder
from hvdtrain.datasets.division import Division
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.interfaces.reading import Dataset
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
    if runtime.resumed and recorded(runtime.resumed).model == config.model:
        network = recorded_network(runtime.resumed, config.model)
    if network is None and is_reference(config.model):
        loaded = load_object(config.model, f"--model {config.model}")
        if not isinstance(loaded, Network):
            task = make_task(config.model, loaded, config.arg, config.on_bad_row == "skip", Division.by(config))
            return dataclasses.replace(task, loader_spec=_task_loader_spec(config, task)), task.dataset
    if config.arg:
        raise UserError(f"--arg {config.arg[0]}: {config.model} is not a task", "give --model FILE.py:CLASS")
    network = network or find_network(config.model)
    spec = _network_loader_spec(config, network)
    dataset = load_dataset(**spec)
    shaped = network.for_data(dataset.input_shape, len(dataset.classes), config.model)
    return NetworkTarget(shaped, spec, dataset.table), dataset


def load_trained(path: Path, saved: Checkpoint, task: Any) -> UserTask:
    """The task of a checkpoint; runs its file.

    path: the checkpoint's. task: the class, or its FILE.py:CLASS; None for the one that the checkpoint names. Raises
    UserError if there is no such task, or it is not the one that was trained.
    """
    trained, options = saved.network["task"], saved.network.get("options")
    name = task if isinstance(task, str) else trained
    if task is None or isinstance(task, str):
        if not is_reference(name):
            raise UserError(f"{path}: was trained by {name!r:.80}, which is no FILE.py:CLASS", "give the class as task")
        task = load_object(name, f"{path}: task {name}")
    settings = [f"{option}={value!r}" for option, value in options.items()] if isinstance(options, dict) else []
    has_record = (run_folder(path) / "config.json").is_file()  # a checkpoint may have been copied without it
    division = Division.by(recorded(path) if has_record else Config())
    made = make_task(name, task, settings, True, division)
    if not made.is_of(saved.network):
        reason = f"{path}: belongs to the task {trained} with {options!r:.80}, not to {name}"
        raise UserError(reason, "give the task that was trained")
    return made


def _task_loader_spec(config: Config, task: UserTask) -> dict[str, Any]:
    """How a process that reads data loads the task's (see `datasets.worker.WorkerProcess`)."""
    return {
        "loader": f"{__name__}:load_task_data",
        "name": config.model,
        "settings": config.arg,
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


def _network_loader_spec(config: Config, network: Network) -> dict[str, Any]:
    """The arguments of `load_dataset` for a network, as JSON has them."""
    return {
        "data": config.data,
        "image_shape": network.input_shape,
        "image_size": config.resized,
        "skip_bad_rows": config.on_bad_row == "skip",
        "name": f"--data {config.data}",
        "split": config.split,
        "seed": config.seed,
        "label": config.label,
        "columns": [name for name in config.columns.split(",") if name],
        "target": config.target,
        "scale": config.scale,
        "weight": config.weight_column,
        "as_images": True,
    }


def recorded_network(path: Path, model: str) -> Network | None:
    """The network of the run at `path`; None if it trained a task.

    model: names it in messages. Raises UserError if the run's record has neither.
    """
    with reading_record(f"--resume {path}, for --model {model}"):
        record = read_json(run_folder(path) / "config.json")["network"]
        return None if "task" in record else from_record(record["description"])
