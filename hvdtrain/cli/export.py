"""hvdtrain export RUN OUTPUT: write a trained network in a format that other programs run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvdtrain import __version__
from hvdtrain.config.option import as_options, option, positional
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.errors import UserError
from hvdtrain.frameworks.export import (
    Comparison,
    Model,
    export_onnx,
    export_program,
    export_saved_model,
)
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.networks.layers import text
from hvdtrain.runs import checkpoints
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import creating
from hvdtrain.system.text import did_you_mean, printable

Format = Literal["onnx", "pt2", "saved_model"]
NAMES: dict[Format, str] = {"onnx": "ONNX", "pt2": "a program of torch.export", "saved_model": "a SavedModel"}
EXPORTS = {"onnx": export_onnx, "pt2": export_program, "saved_model": export_saved_model}
SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "pt2"}


@dataclass(frozen=True)
class ExportOptions:
    """Write a trained network in a format that other programs run, and compare its logits with hvdtrain's own."""

    checkpoint: Path = positional()
    """A run's folder, of which the newest checkpoint is used, RUN/best for its best one (RUN/best:min:NAME by another
    metric), or a checkpoint."""
    output: str = positional(is_path=True)
    """MODEL.onnx for ONNX, MODEL.pt2 for PyTorch (torch.export), FOLDER/ for TensorFlow (SavedModel)."""
    force: bool = option(False)
    """Replace the file or SavedModel that is there already."""

    def __post_init__(self) -> None:
        as_options(self)


PROGRAM = "python -m hvdtrain export"


def parser() -> OptionParser:
    return parser_of(ExportOptions, PROGRAM)


@exit_status()
def main(argv: list[str]) -> None:
    """Write the model and print a line about it; ends the process with an exit status if that fails."""
    options = read_arguments(ExportOptions, PROGRAM, argv)
    kind, output = output_format(options.output), Path(options.output)
    _check_output(kind, output, options.force)
    path, saved = checkpoints.newest(options.checkpoint)
    model = _model(path, saved)
    with creating(f"{output}: cannot be written", output, "give another output"):
        comparison = EXPORTS[kind](model, output)
    images = f"images of {text(model.network.input_shape)} in [0, 1]"
    if "table" in saved.network:
        images = f"rows of {model.network.input_shape[-1]} numbers, made as its metadata say under table,"
    made = f"{model.network.classes} logits" if model.network.classes else "a number"
    _report(kind, path, output, f"float32 {images} to {made}", comparison)


def output_format(output: str) -> Format:
    """The format that a name asks for. Raises UserError for a name that is of none."""
    name = os.path.basename(output.rstrip("/"))
    suffix = name[name.rindex(".") :] if "." in name else ""
    kind = SUFFIXES.get(suffix.lower())
    if kind and not output.endswith("/"):
        return kind
    if name and not kind and (output.endswith("/") or not suffix):
        return "saved_model"
    raise UserError(
        f"{output!r}: no format has such a name{did_you_mean(suffix, SUFFIXES)}",
        "give MODEL.onnx, MODEL.pt2, or FOLDER/ for a SavedModel",
    )


def _check_output(kind: Format, output: Path, force: bool) -> None:
    """Raise UserError, before any work, if the output is there already or cannot be written."""
    parent, exists, folder = output.parent, os.path.lexists(output), kind == "saved_model"
    is_other = folder != output.is_dir() or (folder and not (output / "saved_model.pb").is_file())
    problems = {
        f"there is no folder {parent}": not parent.is_dir(),
        f"the folder {parent} is not writable": not os.access(parent, os.W_OK | os.X_OK),
        f"is there already, and is not {NAMES[kind]}": exists and is_other,
        "is there already; --force would replace it": exists and not force,
    }
    for problem in (problem for problem, is_so in problems.items() if is_so):
        raise UserError(f"{output}: {problem}", "give another output")


def _model(path: Path, saved: Checkpoint) -> Model:
    network = checkpoints.network(path, saved)
    images = "n, channels, height, width; values from 0 to 1, which are pixels from 0 to 255 divided by 255"
    if "table" in saved.network:
        images = "the numbers that the inputs under table become, in this order (docs/data.md)"
    metadata = {
        "model": saved.model,
        "classes": json.dumps(saved.classes),
        "table": json.dumps(saved.network.get("table", {})),
        "images": f"float32 (n, {', '.join(map(str, network.input_shape))}): {images}",
        "step": str(saved.position.step),
        "hvdtrain": __version__,
    }
    return Model(saved.model, network, saved.evaluated, saved.framework, metadata)


def _report(kind: Format, path: Path, output: Path, written: str, comparison: Comparison) -> None:
    print(f"{printable(str(path))} written to {printable(str(output))} as {NAMES[kind]}: {printable(written)}")
    if comparison.problem:
        print(f"not compared with hvdtrain's own logits: {comparison.problem}")
    else:
        print(
            f"logits of {comparison.runtime} are those of hvdtrain in {comparison.framework}: "
            f"they differ by at most {comparison.difference:.1g} on random images"
        )
