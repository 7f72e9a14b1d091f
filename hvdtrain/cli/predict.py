"""hvdtrain predict RUN FILE...: classify image files, or compute the outputs of a task's model for rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from hvdtrain.cli import predict_rows
from hvdtrain.config.option import option, positional
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.config.validity import check_ranges
from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.errors import UserError
from hvdtrain.frameworks.predictions import outputs_of
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Checkpoint
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.runs import checkpoints
from hvdtrain.system.command import exit_status
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.text import printable
from hvdtrain.tasks.registry import load_trained_task
from hvdtrain.tasks.target import NetworkTarget


@dataclass(frozen=True)
class PredictOptions:
    """Print the most probable classes of image files, or the outputs of a task's model for the rows of a file."""

    checkpoint: Path = positional()
    """A run's folder, of which the newest checkpoint is used, RUN/best for its best one (RUN/best:min:NAME by another
    metric), or a checkpoint."""
    files: tuple[Path, ...] = positional()
    """Image files of any size (PNG, JPEG, GIF, BMP, TIFF, WebP, PPM), resized to the network's input. For a task, one
    file of rows: .npy, .npz, .csv, .tsv, .parquet or .feather."""
    model: str = option("")
    """Of a run of a task: FILE.py:CLASS, whose code is then run."""
    arg: tuple[str, ...] = option((), is_repeated=True)
    """NAME=VALUE for an argument of the task's class; may be given several times. By default those of training."""
    test: bool = option(False)
    """Of a run of a task: take its own test rows instead of a file."""
    output: Path | None = option(None)
    """Of a run of a task: write the outputs to this file, .npz, .npy or .csv; by default rows are printed."""
    framework: Literal["recorded", Framework] = option("recorded")
    """Framework to compute in; by default the one that wrote the checkpoint."""
    invert: bool = option(False)
    """Invert the images: the built-in data sets have light drawings on a dark background. Transparent pixels become
    background."""
    top: int = option(3, minimum=1)
    """Number of classes to print for each image."""

    def __post_init__(self) -> None:
        if not (self.files or self.test or self.model):
            raise UserError("no image was given", "give image files after the run: predict RUN IMAGE...")
        check_ranges(self)


PROGRAM = "python -m hvdtrain predict"


def parser() -> OptionParser:
    return parser_of(PredictOptions, PROGRAM)


@exit_status()
def main(argv: list[str]) -> None:
    """Print a line for each image; ends the process with an exit status if that fails."""
    _predict(read_arguments(PredictOptions, PROGRAM, argv))


def _predict(options: PredictOptions) -> None:
    path, saved = checkpoints.newest(options.checkpoint)
    if isinstance(saved.network, dict) and "task" in saved.network and is_reference(saved.model):
        _predict_rows(options, path, saved)
        return
    _check_images(options, path)
    network = checkpoints.network(path, saved)
    images = np.stack([read_image(path, network.input_shape, options.invert) for path in options.files])
    framework = saved.framework if options.framework == "recorded" else options.framework
    if framework not in get_args(Framework):
        raise UserError(f"{path}: written by the unknown framework {framework!r}", "choose one with --framework")
    for path, row in zip(options.files, probabilities(saved, network, images, framework), strict=True):
        best = np.argsort(-row)[: options.top]
        classes = (f"{printable(saved.classes[i])} {row[i]:.3f}" for i in best)
        print(printable(str(path)), *classes, sep="\t")


def _check_images(options: PredictOptions, path: Path) -> None:
    """Raise UserError for what only a task has."""
    if options.model or options.arg or options.test or options.output:
        reason = f"{path}: is of a network as data, which the checkpoint has"
        raise UserError(reason, "leave out --model, --arg, --test and --output")


def _predict_rows(options: PredictOptions, path: Path, saved: Checkpoint) -> None:
    """Outputs of a task's model for the rows of a file, or for its test rows."""
    if options.test + len(options.files) != 1:
        raise UserError(f"{len(options.files)} files of rows were given", "give one file, or --test without a file")
    if options.framework not in ("recorded", saved.framework) or options.invert:
        reason = f"{path}: is of a task in {saved.framework}, and its rows are not images"
        raise UserError(reason, "leave out --framework and --invert")
    if options.output:
        predict_rows.check_output(options.output)
    framework = cast(Framework, saved.framework)
    prepare(framework)  # the file imports it
    task = load_trained_task(path, saved, options.model, options.arg)
    arrays = None if options.test else predict_rows.read_rows(task, options.files[0])
    compute = outputs_of(task, saved.evaluated, framework)
    outputs = predict_rows.joined(task, [compute(inputs) for inputs in predict_rows.batches(task, arrays)])
    if options.output:
        predict_rows.write(options.output, outputs)
    else:
        for line in predict_rows.lines(outputs):
            print(*line, sep="\t")


def probabilities(saved: Checkpoint, network: ShapedNetwork, images: np.ndarray, framework: str) -> np.ndarray:
    """Softmax of the logits of uint8 images (n, channels, height, width): float32 (n, classes)."""
    config = Config(framework=framework, strategy="single", model=saved.model)  # type: ignore[arg-type]
    logits = build_learner(config, NetworkTarget(network), saved.evaluated, RuntimeOptions()).logits(images)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
