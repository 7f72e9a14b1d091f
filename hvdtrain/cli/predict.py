"""hvdtrain predict RUN FILE...: the classes of images or rows of tables by a trained network, or their numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hvdtrain.config.option import as_options, option, positional
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.datasets.formats.table_columns import TableColumn, TableRecipe, recorded_recipe
from hvdtrain.datasets.formats.table_files import TableFile
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.trained import recorded_framework
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.layers import Shape
from hvdtrain.runs import checkpoints
from hvdtrain.system.command import exit_status
from hvdtrain.system.text import printable
from hvdtrain.tasks.target import NetworkTarget


@dataclass(frozen=True)
class PredictOptions:
    """Print the most probable classes of image files or rows of tables, or the numbers that a network predicts."""

    checkpoint: Path = positional()
    """A run's folder, of which the newest checkpoint is used, RUN/best for its best one (RUN/best:min:NAME by another
    metric), or a checkpoint."""
    files: tuple[Path, ...] = positional()
    """Image files of any size (PNG, JPEG, GIF, BMP, TIFF, WebP, PPM, AVIF, HEIC), resized to the network's input; or
    tables with the columns of the one that it was trained on, without the label."""
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
BATCH = 4096
"""Images or rows that are computed at once."""
Named = tuple[list[str], np.ndarray]
"""Names of n images or rows, and their arrays (n, channels, height, width)."""


def parser() -> OptionParser:
    return parser_of(PredictOptions, PROGRAM)


@exit_status()
def main(argv: list[str]) -> None:
    """Print a line for each image or row; ends the process with an exit status if that fails, or for some files."""
    options = read_arguments(PredictOptions, PROGRAM, argv)
    path, saved = checkpoints.newest(options.checkpoint)
    network = checkpoints.network(path, saved)
    recipe = recorded_recipe(path, saved.network)
    if recipe and options.invert:
        raise UserError("--invert: the network was trained on a table", "leave it out")
    read, skipped = _read(options.files, lambda file: _rows(file, network.input_shape, options.invert, recipe))
    chosen = options.framework
    framework = recorded_framework(saved.framework, path) if chosen == "recorded" else chosen
    label = recipe.label if recipe else TableColumn("", "number")
    names = [name for of_file, _ in read for name in of_file]
    rows = outputs(saved, network, np.concatenate([images for _, images in read]), framework) if read else ()
    for name, row in zip(names, rows, strict=True):
        best = np.argsort(-row)[: options.top]
        classes = [f"{printable(saved.classes[i])} {row[i]:.3f}" for i in best if saved.classes]
        numbers = classes or [f"{row[0] * label.scale + label.shift:.7g}"]
        print(printable(name), *numbers, sep="\t", flush=True)
    for error in skipped:
        print(f"skipped: {error}", file=sys.stderr)
    if skipped:
        raise UserError(
            f"{len(skipped)} of {len(options.files)} file(s) cannot be read", "correct them, or leave them out"
        )


def _rows(file: Path, shape: Shape, invert: bool, recipe: TableRecipe | None) -> Named:
    """The image of a file, or the rows of a table, which are images of 1 x 1 x n. Raises UserError."""
    if not recipe:
        return [str(file)], read_image(file, shape, invert)[np.newaxis]
    table = TableFile(file, recipe.kinds, recipe.form)
    for note in table.guesses:
        print(f"hvdtrain: {file}: {note}", file=sys.stderr)
    return [f"{file}:{row}" for row in range(len(table))], recipe.encode(table)[:, np.newaxis, np.newaxis]


def _read(files: Sequence[Path], read: Callable[[Path], Named]) -> tuple[list[Named], list[UserError]]:
    """The rows of the files that can be read, in their order; and what is wrong with the others."""
    rows, errors = [], []
    for path in files:
        try:
            rows.append(read(path))
        except UserError as error:
            errors.append(error)
    return rows, errors


def outputs(saved: Checkpoint, network: ShapedNetwork, images: np.ndarray, framework: str) -> np.ndarray:
    """Softmax of the logits of images, float32 (n, classes); or the number that is predicted for each, (n, 1).

    images: (n, channels, height, width), uint8, or float32 used as it is.
    """
    config = Config(framework=framework, strategy="single", model=saved.model)  # type: ignore[arg-type]
    learner = build_learner(config, NetworkTarget(network), saved.evaluated, RuntimeOptions())
    logits = np.concatenate([learner.logits(images[i : i + BATCH]) for i in range(0, len(images), BATCH)])
    if network.is_regression:
        return logits
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
