"""Networks in formats that other programs run: ONNX, torch.export's and TensorFlow's own.

Each is compared with the logits in hvdtrain before it gets its name on the disk.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.errors import HvdtrainError, UserError, needed_by
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.trained import recorded_framework
from hvdtrain.interfaces.reading import PIXEL_MAX
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.layers import Shape
from hvdtrain.system.files import replace_folder, write_atomically
from hvdtrain.tasks.target import NetworkTarget

TOLERANCE = 1e-5
"""Of the largest logit, or of 1 if that is less: float32 has seven digits."""
BLOCKS = (1, 2, 4, 8)
"""Random images on which logits are compared: of squares of so many pixels, as averages of noise differ little."""


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
        """Compare with the logits that `run` returns for float32 images: of one, and of all.

        Raises HvdtrainError if they differ.
        """
        largest = 0.0
        for count in (1, len(BLOCKS)):
            expected, logits = self._logits[:count], run(self._images[:count])
            allowed, difference = TOLERANCE * max(1.0, float(np.abs(expected).max())), np.inf
            if logits.shape == expected.shape:
                difference = float(np.abs(np.subtract(expected, logits, dtype=np.float64)).max())
            if not difference <= allowed:  # nor NaN
                raise HvdtrainError(
                    f"the logits of {runtime} differ by {difference:.1g} from those of {self._framework}, more than "
                    f"{allowed:.1g}, so nothing was written",
                    "export in another format, and report this as a bug of hvdtrain",
                )
            largest = max(largest, difference)
        return Comparison(runtime, self._framework, largest)


def export_onnx(model: Model, path: Path) -> Comparison:
    """Write an ONNX model, and compare it with the framework of the checkpoint, if that is installed.

    Raises UserError if a package is missing or the model too large, OSError if the file cannot be written.
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
    comparison = _compare_onnx(model, content)
    write_atomically(path, content)
    return comparison


def _compare_onnx(model: Model, content: bytes) -> Comparison:
    try:
        runtime = _import_package("onnxruntime")
        framework = recorded_framework(model.framework, f"the network {model.name}")
    except UserError as error:
        return Comparison(problem=str(error))
    reference = _Reference(model, framework)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # a pool of threads would be bound to cores that the process may not have
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return reference.compare(
        f"ONNX Runtime {runtime.__version__}", lambda images: session.run(["logits"], {"images": images})[0]
    )


def export_program(model: Model, path: Path) -> Comparison:
    """Write a program of torch.export. Raises UserError without PyTorch, OSError if the file cannot be written."""
    reference = _Reference(model, "torch")
    from hvdtrain.frameworks.torch.export import WholeImages, program_logits, to_program

    # At least two images: the number of a single one would become a constant.
    example = np.zeros((2, *model.network.input_shape), np.float32)
    content = to_program(WholeImages(model.network, model.weights), example, model.metadata)
    comparison = reference.compare("the exported program", lambda images: program_logits(content, images))
    write_atomically(path, content)
    return comparison


def export_saved_model(model: Model, folder: Path) -> Comparison:
    """Write a SavedModel. Raises UserError without TensorFlow, OSError if the folder cannot be written."""
    reference = _Reference(model, "tensorflow")
    from hvdtrain.frameworks.tensorflow.export import save_network, saved_logits

    def write(draft: Path) -> Comparison:
        save_network(model.network, model.weights, model.metadata, draft)
        return reference.compare("the SavedModel", lambda images: saved_logits(draft, images))

    return replace_folder(folder, write)


def _import_package(name: str) -> ModuleType:
    with needed_by("export to ONNX", "onnx"):
        return importlib.import_module(name)
