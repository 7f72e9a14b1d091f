"""hvdtrain predict CHECKPOINT IMAGE...: classify image files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import tyro
from PIL import Image, ImageOps

from hvdtrain.cli.exit_status import exit_status
from hvdtrain.cli.parser import check_choices
from hvdtrain.config.options import Config, Framework
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Checkpoint
from hvdtrain.networks.description import Network
from hvdtrain.runs import checkpoints

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Image formats that are read. Pillow knows more, and starts Ghostscript for one of them."""


@dataclass(frozen=True)
class PredictOptions:
    """Classify image files with a checkpoint: prints the most probable classes of each with their probabilities."""

    checkpoint: tyro.conf.Positional[Path]
    """A run's folder, of which the newest checkpoint is used, or a checkpoint."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Image files of any size (PNG, JPEG, GIF, BMP, TIFF, WebP, PPM); they are resized to the network's input."""
    framework: Literal["recorded", Framework] = "recorded"
    """Framework to compute in; by default the one that wrote the checkpoint."""
    invert: bool = False
    """Invert the images: the built-in data sets have light drawings on a dark background."""
    top: int = 3
    """Number of classes to print for each image."""


@exit_status()
def main(argv: list[str]) -> None:
    """Print a line for each image; ends the process with an exit status if that fails."""
    check_choices(argv, PredictOptions)
    _predict(tyro.cli(PredictOptions, prog="python -m hvdtrain predict", args=argv))


def _predict(options: PredictOptions) -> None:
    path, saved = checkpoints.newest(options.checkpoint)
    network = checkpoints.network(path, saved)
    images = np.stack([read_image(path, network, options.invert) for path in options.images])
    framework = saved.framework if options.framework == "recorded" else options.framework
    if framework not in get_args(Framework):
        raise UserError(f"{path}: written by the unknown framework {framework!r}", "choose one with --framework")
    for path, row in zip(options.images, probabilities(saved, images, framework), strict=True):
        best = np.argsort(-row)[: options.top]
        print(path, *(f"{saved.classes[i]} {row[i]:.3f}" for i in best), sep="\t")


def read_image(path: Path, network: Network, invert: bool) -> np.ndarray:
    """The image in the network's input shape, uint8 (channels, height, width). Raises UserError."""
    channels, height, width = network.input_shape
    try:
        with Image.open(path, formats=FORMATS) as image:
            picture = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BOX)
    except Exception as error:  # for invalid bytes the readers of image formats raise a dozen kinds
        raise UserError(f"{path}: cannot be read as an image ({error})", f"give one of {', '.join(FORMATS)}") from None
    pixels = np.asarray(ImageOps.invert(picture) if invert else picture)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1).copy()


def probabilities(saved: Checkpoint, images: np.ndarray, framework: str) -> np.ndarray:
    """Softmax of the logits of uint8 images (n, channels, height, width): float32 (n, classes)."""
    config = Config(framework=framework, strategy="single", model=saved.model)  # type: ignore[arg-type]
    logits = build_learner(config, saved.weights, RuntimeOptions()).logits(images)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
