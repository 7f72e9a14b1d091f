"""python -m hvdtrain predict CHECKPOINT IMAGE...: classify image files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import tyro
from PIL import Image, ImageOps

from hvdtrain.config.options import Config, Framework
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Checkpoint
from hvdtrain.networks.description import Network
from hvdtrain.runs import checkpoints

KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Kinds of images that are read. Pillow knows more, and starts Ghostscript for one of them."""


@dataclass(frozen=True)
class Predict:
    """Classify image files with a checkpoint: the class and its probability, best first."""

    checkpoint: tyro.conf.Positional[Path]
    """A run's folder (its newest checkpoint is taken), or one checkpoint."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Image files of any size (PNG, JPEG, GIF, BMP, TIFF, WebP, PPM); they are resized to what the network takes."""
    framework: Literal["recorded", "mxnet", "torch", "tensorflow"] = "recorded"
    """Framework to compute with; by default the one that wrote the checkpoint."""
    invert: bool = False
    """Turn dark on light into light on dark, which the built-in data sets are."""
    top: int = 3
    """Classes to show for each image."""


def main(argv: list[str]) -> None:
    """Print a line for each image; ends the process with a status where that fails."""
    try:
        options = tyro.cli(Predict, prog="python -m hvdtrain predict", args=argv)
        path, saved = checkpoints.newest(options.checkpoint)
        network = checkpoints.network(path, saved)
        images = np.stack([read_image(path, network, options.invert) for path in options.images])
        framework = saved.framework if options.framework == "recorded" else options.framework
        if framework not in get_args(Framework):
            raise UserError(f"{path}: it is of {framework!r}, which is no framework here; give --framework")
        for path, probabilities in zip(options.images, probability(saved, images, framework), strict=True):
            best = np.argsort(-probabilities)[: options.top]
            print(path, *(f"{saved.classes[i]} {probabilities[i]:.3f}" for i in best), sep="\t")
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def read_image(path: Path, network: Network, invert: bool) -> np.ndarray:
    """The image as the network takes it, uint8 (channels, height, width). Raises UserError."""
    channels, height, width = network.input_shape
    try:
        with Image.open(path, formats=KINDS) as image:
            picture = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BOX)
    except Exception as error:  # on bad bytes the readers of images raise a dozen kinds
        raise UserError(f"{path}: no image that can be read ({error}); give PNG, JPEG or another common kind") from None
    pixels = np.asarray(ImageOps.invert(picture) if invert else picture)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1).copy()


def probability(saved: Checkpoint, images: np.ndarray, framework: str) -> np.ndarray:
    """Softmax of the logits, float32 (n, classes)."""
    config = Config(framework=framework, strategy="single", model=saved.model)  # type: ignore[arg-type]
    logits = build_learner(config, saved.weights, RuntimeOptions()).logits(images)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
