"""hvdtrain predict RUN IMAGE...: classify image files by a trained network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hvdtrain.config.option import as_options, option, positional
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.trained import recorded_framework
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.layers import Shape
from hvdtrain.runs import checkpoints
from hvdtrain.system import removed
from hvdtrain.system.command import exit_status
from hvdtrain.system.text import printable
from hvdtrain.tasks.target import NetworkTarget


@dataclass(frozen=True)
class PredictOptions:
    """Print the most probable classes of image files."""

    checkpoint: Path = positional()
    """A run's folder, of which the newest checkpoint is used, RUN/best for its best one (RUN/best:min:NAME by another
    metric), or a checkpoint."""
    files: tuple[Path, ...] = positional()
    """Image files of any size (PNG, JPEG, GIF, BMP, TIFF, WebP, PPM, AVIF, HEIC), resized to the network's input."""
    framework: Literal["recorded", Framework] = option("recorded")
    """Framework to compute in; by default the one that wrote the checkpoint."""
    invert: bool = option(False)
    """Invert the images: the built-in data sets have light drawings on a dark background. Transparent pixels become
    background."""
    top: int = option(3, minimum=1)
    """Number of classes to print for each image."""

    def __post_init__(self) -> None:
        as_options(self)


PROGRAM = "python -m hvdtrain predict"


def parser() -> OptionParser:
    return parser_of(PredictOptions, PROGRAM, removed.PREDICT)


@exit_status()
def main(argv: list[str]) -> None:
    """Print a line for each image; ends the process with an exit status if that fails, or fails for some of them."""
    options = read_arguments(PredictOptions, PROGRAM, argv, removed.PREDICT)
    path, saved = checkpoints.newest(options.checkpoint)
    network = checkpoints.network(path, saved)
    read, images, skipped = _read(options.files, network.input_shape, options.invert)
    chosen = options.framework
    framework = recorded_framework(saved.framework, path) if chosen == "recorded" else chosen
    rows = probabilities(saved, network, np.stack(images), framework) if images else ()
    for path, row in zip(read, rows, strict=True):
        best = np.argsort(-row)[: options.top]
        classes = (f"{printable(saved.classes[i])} {row[i]:.3f}" for i in best)
        print(printable(str(path)), *classes, sep="\t", flush=True)
    for error in skipped:
        print(f"skipped: {error}", file=sys.stderr)
    if skipped:
        raise UserError(
            f"{len(skipped)} of {len(options.files)} file(s) cannot be read", "correct them, or leave them out"
        )


def _read(files: Sequence[Path], shape: Shape, invert: bool) -> tuple[list[Path], list[np.ndarray], list[UserError]]:
    """The files that can be read, in their order, with their images; and what is wrong with the others."""
    read, images, errors = [], [], []
    for path in files:
        try:
            images.append(read_image(path, shape, invert))
            read.append(path)
        except UserError as error:
            errors.append(error)
    return read, images, errors


def probabilities(saved: Checkpoint, network: ShapedNetwork, images: np.ndarray, framework: str) -> np.ndarray:
    """Softmax of the logits of uint8 images (n, channels, height, width): float32 (n, classes)."""
    config = Config(framework=framework, strategy="single", model=saved.model)  # type: ignore[arg-type]
    logits = build_learner(config, NetworkTarget(network), saved.evaluated, RuntimeOptions()).logits(images)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
