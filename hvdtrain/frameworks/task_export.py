"""Models of tasks in their framework's own format, compared with the task's model before they get their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hvdtrain.frameworks.export import Comparison, compare
from hvdtrain.frameworks.requirements import require
from hvdtrain.frameworks.tuning import set_environment
from hvdtrain.networks.description import Weights
from hvdtrain.system.files import replace_folder, write_atomically
from hvdtrain.tasks.user import UserTask

REMEDY = "let the model's outputs depend on its inputs and weights only, by the framework's operations"


def export_task_program(task: UserTask, weights: Weights, metadata: Mapping[str, str], path: Path) -> Comparison:
    """Write the model of a PyTorch task as a program of torch.export, for any number of rows.

    Raises UserError if PyTorch cannot make one of it, OSError if the file cannot be written.
    """
    require(["torch"], "torch")
    set_environment()
    from hvdtrain.frameworks.torch.export import task_module, task_program

    module, inputs = task_module(task, weights), _inputs(task)
    program = task_program(task, module, inputs, metadata)
    comparison = compare("torch", "the exported program", _parts(inputs), module.outputs, program.outputs, REMEDY)
    write_atomically(path, program.content)
    return comparison


def export_task_saved_model(task: UserTask, weights: Weights, metadata: Mapping[str, str], folder: Path) -> Comparison:
    """Write the model of a TensorFlow task as a SavedModel, for any number of rows.

    Raises UserError if TensorFlow cannot make one of it, OSError if the folder cannot be written.
    """
    require(["tensorflow"], "tensorflow")
    set_environment()
    from hvdtrain.frameworks.tensorflow.export import TaskModel, saved_outputs

    model, inputs = TaskModel(task, weights), _inputs(task)

    def write(draft: Path) -> Comparison:
        model.save(inputs, metadata, draft)
        return compare(
            "tensorflow",
            "the SavedModel",
            _parts(inputs),
            model.outputs,
            lambda *rows: saved_outputs(draft, rows),
            REMEDY,
        )

    return replace_folder(folder, write)


def _inputs(task: UserTask) -> tuple[np.ndarray, ...]:
    """What the model gets of the first rows, at least two: a single one would become a constant."""
    arrays = task.first_rows()[: task.inputs]
    return tuple(np.repeat(array, 2, 0) if len(array) == 1 else array for array in arrays)


def _parts(inputs: tuple[np.ndarray, ...]) -> list[tuple[np.ndarray, ...]]:
    """One row, and all."""
    return [tuple(array[:1] for array in inputs), inputs]
