"""`hvdtrain predict` for tasks: rows of a file, or the task's own test rows, and the model's outputs for them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats import tables
from hvdtrain.datasets.formats.reading import wrap_errors
from hvdtrain.errors import UserError
from hvdtrain.frameworks.predictions import Outputs
from hvdtrain.interfaces.reading import Source
from hvdtrain.system.files import write_atomically
from hvdtrain.tasks.user import UserTask

ROWS = 256
"""Rows of which outputs are computed at once."""
TABLES = (".csv", ".tsv", ".parquet", ".feather")
ARRAYS = (".npy", ".npz")
WRITTEN = (".npz", ".npy", ".csv")
CLASS = "class"
"""Name of the output that a classifier gets in addition: the number of the greatest logit."""
Arrays = tuple[np.ndarray, ...]


def read_rows(task: UserTask, path: Path) -> Arrays:
    """What the model gets of the rows in a file. Raises UserError if they are not as the task's.

    An array of .npy, the first arrays of .npz in their order, or the columns of a table as one array, float32.
    """
    suffix = path.suffix.lower()
    if suffix not in (*ARRAYS, *TABLES):
        raise UserError(f"{path}: is no file of rows", f"give one of {', '.join((*ARRAYS, *TABLES))}")
    given = [_columns(path)] if suffix in TABLES else _arrays(path)
    if len(given) < task.inputs:
        raise UserError(f"{path}: has {len(given)} array(s), and the model gets {task.inputs}", "give .npz with all")
    inputs = given[: task.inputs]
    if len({len(array) for array in inputs}) != 1 or not len(inputs[0]):
        raise UserError(f"{path}: its arrays have {', '.join(str(len(one)) for one in inputs)} rows", "give as many")
    example = task.dataset.test if len(task.dataset.test) else task.dataset.train
    expected = example[np.zeros(1, np.int64)][: task.inputs]
    return tuple(_like(path, array, one) for array, one in zip(inputs, expected, strict=True))


def _arrays(path: Path) -> list[np.ndarray]:
    with wrap_errors(path, "save arrays of numbers by numpy.save or savez"):
        loaded = np.load(path, allow_pickle=False)
        arrays = [loaded] if isinstance(loaded, np.ndarray) else [loaded[name] for name in loaded.files]
    if any(array.ndim == 0 for array in arrays):
        raise UserError(f"{path}: has a single number", "give arrays with a row for each prediction")
    return arrays


def _columns(path: Path) -> np.ndarray:
    """The columns of a table, float32 (n, columns)."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file", "give a file of rows")
    table = tables.read_table(path)
    columns = []
    for name in table.column_names:
        values = table[name].to_numpy()
        if values.dtype.kind not in "iufb":
            raise UserError(f"{path}: the column {name} has values that are not numbers", "leave it out, or encode it")
        columns.append(values.astype(np.float32))
    return np.stack(columns, 1) if columns else np.zeros((0, 0), np.float32)


def _like(path: Path, array: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The array in the type of the task's rows."""
    if array.ndim != expected.ndim or not np.can_cast(array.dtype, expected.dtype, "same_kind"):
        ours, theirs = (f"{one.dtype} {one.shape[1:]}" for one in (array, expected))
        raise UserError(f"{path}: a row is {ours}, and one of the task is {theirs}", "give rows as data() returns them")
    return array.astype(expected.dtype, copy=False)


def batches(task: UserTask, arrays: Arrays | None) -> Iterator[Arrays]:
    """The model's inputs, ROWS at a time. arrays: None for the task's test rows."""
    test: Source = task.dataset.test
    count = len(test) if arrays is None else len(arrays[0])
    if not count:
        raise UserError("--test: the task has no test rows", "give a file of rows", option="test")
    for first in range(0, count, ROWS):
        numbers = np.arange(first, min(first + ROWS, count))
        yield test[numbers][: task.inputs] if arrays is None else tuple(array[numbers] for array in arrays)


def joined(task: UserTask, parts: list[Outputs]) -> Outputs:
    """The outputs of all rows, and the class of each where the task classifies by the default loss."""
    outputs = {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in parts[0]}
    logits = outputs.get("output")
    if not task.has("losses") and logits is not None and logits.ndim == 2 and len(outputs) == 1:
        outputs[CLASS] = logits.argmax(1)
    return outputs


def check_output(output: Path) -> None:
    """Raise UserError, before any work, for a name that no format has, or a folder that is not there."""
    if output.suffix.lower() not in WRITTEN:
        raise UserError(f"--output {output}: no format has such a name", f"give FILE with {', '.join(WRITTEN)}")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}", "create it, or give another")


def write(output: Path, outputs: Outputs) -> None:
    """Write outputs to a file. Raises UserError if its format cannot hold them, or the disk does not accept it."""
    content, suffix = io.BytesIO(), output.suffix.lower()
    if suffix == ".npz":
        np.savez(content, **outputs)
    elif suffix == ".npy":
        names = [name for name in outputs if name != CLASS]
        if len(names) > 1:
            raise UserError(f"--output {output}: the model has several outputs: {', '.join(names)}", "give .npz")
        np.save(content, outputs[names[0]])
    else:
        content.write("".join(f"{','.join(line)}\n" for line in lines(outputs, header=True)).encode())
    try:
        write_atomically(output, content.getvalue())
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror or error})", "give another output") from None


def lines(outputs: Outputs, header: bool = False) -> Iterator[list[str]]:
    """The number of each row and its outputs as texts, of which each float is read back as the same number."""
    count = len(next(iter(outputs.values())))
    flat = {name: array.reshape(count, -1) for name, array in outputs.items()}
    if header:
        names = ([name] if array.shape[1] == 1 else [f"{name}.{i}" for i in range(array.shape[1])]
                 for name, array in flat.items())  # fmt: skip
        yield ["row", *(name for group in names for name in group)]
    for row in range(count):
        yield [str(row), *(str(value) for array in flat.values() for value in array[row])]
