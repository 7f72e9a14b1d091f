"""hvdtrain predict RUN IMAGE...: classify image files by a trained network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hvdtrain.config.option import as_options, option, positional
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.trained import recorded_framework
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.networks.description import ShapedNetwork
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
    """Image files of any size (PNG, JPEG, GIF, BMP, TIFF, WebP, PPM), resized to the network's input."""
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
    """Print a line for each image; ends the process with an exit status if that fails."""
    options = read_arguments(PredictOptions, PROGRAM, argv, removed.PREDICT)
    path, saved = checkpoints.newest(options.checkpoint)
    network = checkpoints.network(path, saved)
    images = np.stack([read_image(path, network.input_shape, options.invert) for path in options.files])
    chosen = options.framework
    framework = recorded_framework(saved.framework, path) if chosen == "recorded" else chosen
    for path, row in zip(options.files, probabilities(saved, network, images, framework), strict=True):
        best = np.argsort(-row)[: options.top]
        classes = (f"{printable(saved.classes[i])} {row[i]:.3f}" for i in best)
        print(printable(str(path)), *classes, sep="\t")


def probabilities(saved: Checkpoint, network: ShapedNetwork, images: np.ndarray, framework: str) -> np.ndarray:
    """Softmax of the logits of uint8 images (n, channels, height, width): float32 (n, classes)."""
    config = Config(framework=framework, strategy="single", model=saved.model)  # type: ignore[arg-type]
    logits = build_learner(config, NetworkTarget(network), saved.evaluated, RuntimeOptions()).logits(images)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
