"""Networks and models of tasks in formats that other programs run: ONNX, torch.export's and TensorFlow's own.

Each is compared with the logits or outputs in hvdtrain before it gets its name on the disk.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, cast, get_args

import numpy as np

from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.errors import HvdtrainError, UserError, needed_by
from hvdtrain.frameworks.preparation import require, set_environment
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import PIXEL_MAX
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.layers import Shape
from hvdtrain.system.files import replace_folder, write_atomically
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.tasks.user import UserTask

TOLERANCE = 1e-5
"""Of the largest logit, or of 1 if that is less: float32 has seven digits."""
BLOCKS = (1, 2, 4, 8)
"""Random images on which logits are compared: of squares of so many pixels, as averages of noise differ little."""
TASK_REMEDY = "let the model's outputs depend on its inputs and weights only, by the framework's operations"


@dataclass(frozen=True)
class Model:
    """A trained network. name: as --model had it. framework: that wrote it. metadata: to store with it."""

    name: str
    network: ShapedNetwork
    weights: Weights
    framework: str
    metadata: Mapping[str, str]


class Comparison(NamedTuple):
    """How a model compares with the network in hvdtrain.

    runtime: what computed the exported model's logits. framework: what computed those of hvdtrain. difference: the
    largest one. problem: why nothing was compared; empty if it was.
    """

    runtime: str = ""
    framework: str = ""
    difference: float = 0.0
    problem: str = ""


def random_images(shape: Shape) -> np.ndarray:
    """Images of BLOCKS, uint8 (n, channels, height, width)."""
    draw, (_, height, width) = np.random.default_rng(0), shape
    images = np.empty((len(BLOCKS), *shape), np.uint8)
    for image, block in zip(images, BLOCKS, strict=True):
        squares = draw.integers(0, 256, (shape[0], -(-height // block), -(-width // block)), np.uint8)
        image[:] = squares.repeat(block, 1).repeat(block, 2)[:, :height, :width]
    return images


class _Reference:
    """Logits of random images, computed by hvdtrain in a framework, on the CPU."""

    def __init__(self, model: Model, framework: Framework) -> None:
        images = random_images(model.network.input_shape)
        config = Config(framework=framework, strategy="single", model=model.name)
        learner = build_learner(config, NetworkTarget(model.network), model.weights, RuntimeOptions(device="cpu"))
        self._framework, self._logits = framework, learner.logits(images)
        self._images = images.astype(np.float32) / np.float32(PIXEL_MAX)
        if not np.isfinite(self._logits).all():
            raise UserError(
                f"the network {model.name}: its logits of random images are not finite", "export another checkpoint"
            )

    def compare(self, runtime: str, run: Callable[[np.ndarray], np.ndarray]) -> Comparison:
        """Compare with the logits that `run` returns for float32 images. Raises HvdtrainError if they differ."""
        numbers = [np.arange(count) for count in (1, len(BLOCKS))]
        return compare(
            *(self._framework, runtime, [(rows,) for rows in numbers]),
            lambda rows: {"logits": self._logits[rows]},
            lambda rows: {"logits": run(self._images[rows])},
        )


Outputs = Mapping[str, np.ndarray]
"""Of a model, by name."""


def compare(
    framework: Framework,
    runtime: str,
    inputs: Iterable[tuple[np.ndarray, ...]],
    original: Callable[..., Outputs],
    exported: Callable[..., Outputs],
    remedy: str = "export in another format, and report this as a bug of hvdtrain",
) -> Comparison:
    """Compare the outputs of both for each of the inputs. Raises HvdtrainError, with this remedy, if they differ."""
    largest = 0.0
    for arrays in inputs:
        expected, outputs = original(*arrays), exported(*arrays)
        for name, values in expected.items():
            if not np.isfinite(values).all():
                raise UserError("the model's outputs are not finite", "export another checkpoint")
            shape = outputs[name].shape if name in outputs else None
            if shape != values.shape:
                raise HvdtrainError(
                    f"the {name} of {runtime} are of shape {shape}, those of {framework} of {values.shape}, so "
                    "nothing was written",
                    remedy,
                )
            allowed = TOLERANCE * max(1.0, float(np.abs(values).max(initial=0)))
            # NumPy's maximum of NaN and another number is NaN, which is not below anything.
            difference = float(np.abs(np.subtract(values, outputs[name], dtype=np.float64)).max(initial=0))
            if not difference <= allowed:
                raise HvdtrainError(
                    f"the {name} of {runtime} differ by {difference:.1g} from those of {framework}, more than "
                    f"{allowed:.1g}, so nothing was written",
                    remedy,
                )
            largest = max(largest, difference)
    return Comparison(runtime, framework, largest)


def export_onnx(model: Model, path: Path, framework: Framework | None) -> Comparison:
    """Write an ONNX model, which needs a framework only for the comparison.

    framework: to compare with; None for that of the checkpoint, if it is installed. Raises UserError if a package is
    missing or the model too large, OSError if the file cannot be written.
    """
    _import_package("onnx")
    from hvdtrain.networks.onnx_graph import LARGEST, to_onnx

    size = sum(array.nbytes for array in model.weights.values())
    if size > LARGEST:
        raise UserError(
            f"the network {model.name}: {size / 2**30:.1f} GiB of weights are more than an ONNX file can hold",
            "export to .pt2 or to a SavedModel",
        )
    content = to_onnx(model.network, model.weights, model.metadata).SerializeToString()
    comparison = _compare_onnx(model, content, framework)
    write_atomically(path, content)
    return comparison


def _compare_onnx(model: Model, content: bytes, framework: Framework | None) -> Comparison:
    try:
        runtime = _import_package("onnxruntime")
        if framework is None:
            framework = _recorded(model)
    except UserError as error:
        return Comparison(problem=str(error))
    reference = _Reference(model, framework)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # a pool of threads would be bound to cores that the process may not have
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return reference.compare(
        f"ONNX Runtime {runtime.__version__}", lambda images: session.run(["logits"], {"images": images})[0]
    )


def _recorded(model: Model) -> Framework:
    """The framework that wrote the checkpoint. Raises UserError if it is not installed, or unknown."""
    if model.framework not in get_args(Framework):
        raise UserError(f"written by the unknown framework {model.framework!r}", "choose one with --framework")
    framework = cast(Framework, model.framework)
    require([framework], framework)
    return framework


def export_program(model: Model, path: Path) -> Comparison:
    """Write a program of torch.export. Raises UserError without PyTorch, OSError if the file cannot be written."""
    reference = _Reference(model, "torch")
    from hvdtrain.frameworks.torch.export import WholeImages, program_outputs, to_program

    example = np.zeros((2, *model.network.input_shape), np.float32)
    content = to_program(WholeImages(model.network, model.weights), (example,), model.metadata)
    comparison = reference.compare("the exported program", lambda images: program_outputs(content, images)["output"])
    write_atomically(path, content)
    return comparison


def export_saved_model(model: Model, folder: Path) -> Comparison:
    """Write a SavedModel. Raises UserError without TensorFlow, OSError if the folder cannot be written."""
    reference = _Reference(model, "tensorflow")
    from hvdtrain.frameworks.tensorflow.export import save_network, saved_outputs

    def write(draft: Path) -> Comparison:
        save_network(model.network, model.weights, model.metadata, draft)
        return reference.compare("the SavedModel", lambda images: saved_outputs(draft, images=images)["logits"])

    return replace_folder(folder, write)


def export_task_program(task: UserTask, weights: Weights, metadata: Mapping[str, str], path: Path) -> Comparison:
    """Write the model of a PyTorch task as a program of torch.export, for any number of rows.

    Raises UserError if PyTorch cannot make one of it, OSError if the file cannot be written.
    """
    require(["torch"], "torch")
    set_environment()
    from hvdtrain.frameworks.torch import export

    module, inputs = export.task_module(task, weights), _task_inputs(task)
    try:
        content = export.to_program(module, inputs, metadata)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        problem = f"returned a module that torch.export cannot follow ({reason:.300})"
        raise task.error("model", problem, "change its forward()") from error
    comparison = compare(
        *("torch", "the exported program", _first_row_and_all(inputs)),
        functools.partial(export.module_outputs, module),
        functools.partial(export.program_outputs, content),
        TASK_REMEDY,
    )
    write_atomically(path, content)
    return comparison


def export_task_saved_model(task: UserTask, weights: Weights, metadata: Mapping[str, str], folder: Path) -> Comparison:
    """Write the model of a TensorFlow task as a SavedModel, for any number of rows.

    Raises UserError if TensorFlow cannot make one of it, OSError if the folder cannot be written.
    """
    require(["tensorflow"], "tensorflow")
    set_environment()
    from hvdtrain.frameworks.tensorflow.export import TaskModel

    model, inputs = TaskModel(task, weights), _task_inputs(task)

    def write(draft: Path) -> Comparison:
        model.save(inputs, metadata, draft)
        exported = functools.partial(model.saved_outputs, draft)
        parts = _first_row_and_all(inputs)
        return compare("tensorflow", "the SavedModel", parts, model.outputs, exported, TASK_REMEDY)

    return replace_folder(folder, write)


def _task_inputs(task: UserTask) -> tuple[np.ndarray, ...]:
    """What the model gets of the first rows, at least two: a single one would become a constant."""
    arrays = task.first_rows()[: task.inputs]
    return tuple(np.repeat(array, 2, 0) if len(array) == 1 else array for array in arrays)


def _first_row_and_all(inputs: tuple[np.ndarray, ...]) -> list[tuple[np.ndarray, ...]]:
    return [tuple(array[:1] for array in inputs), inputs]


def _import_package(name: str) -> ModuleType:
    with needed_by("export to ONNX", "onnx"):
        return importlib.import_module(name)
