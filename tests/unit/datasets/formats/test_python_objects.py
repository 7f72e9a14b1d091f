"""Data from the user's Python code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.row_data import CLASSES, rejected, write_python

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import RowError
from hvdtrain.errors import UserError


def test_python_objects(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert load_dataset(write_python(data, "source")).train.fingerprint == "mine"
    assert load_dataset(write_python(data, "arrays")).classes == CLASSES
    assert load_dataset(write_python(data, "arrays")).fingerprint
    random = write_python(data, "random")
    assert load_dataset(random).fingerprint == load_dataset(random).fingerprint
    assert load_dataset(random).fingerprint != load_dataset(write_python(data, "map_style")).fingerprint
    place = "mine.py:broken: train (row 4)"
    error = rejected(write_python(data, "broken"), f"{place}: cannot be read (ValueError: no such file)")
    assert isinstance(error, RowError)
    rejected(write_python(data, "nothing"), "mine.py:nothing: is of type int; return (train, test)")
    rejected(write_python(data, "fails"), "mine.py:fails: ZeroDivisionError: division by zero")
    rejected(write_python(data, "unnamed"), "the number of classes is not known; return (train, test, classes)")
    rejected(write_python(data, "map_stile"), "has no map_stile (did you mean map_style?)")
    rejected(tmp_path / "no.py:name", "no.py")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("3", "is of type int; return a tuple of image and label"),
        ("(np.zeros((5, 4), np.uint8), 1.5)", "has a label of type float64"),
        ("(np.zeros((5, 4), np.uint8), 3)", "the label is 3, and the data has 3 classes, from 0 on"),
        ("(np.zeros((5, 5), np.uint8), 0)", "the image is uint8 of 1x5x5, the first one is uint8 of 1x5x4"),
        ("(np.zeros((5, 4), np.float32), 0)", "the image is float32 of 1x5x4, the first one is uint8"),
        ("(np.zeros(4, np.uint8), 0)", "the image has shape (4,)"),
    ],
)
def test_row_of_a_python_object_that_is_unlike_the_others(tmp_path: Path, item: str, text: str) -> None:
    reference = write_python(tmp_path / "data")
    path = tmp_path / "data" / "mine.py"
    method = f"def __getitem__(self, row):\n        return {item} if row == 3 else super().__getitem__(row)"
    code = f"\nclass Odd(MapStyle):\n    {method}\n"
    path.write_text(f"{path.read_text()}{code}\ndata = Odd('train'), MapStyle('test')\n")
    rejected(reference.replace("map_style", "data"), "train (row 3): ", text)


@pytest.mark.parametrize(("targets", "text"), [(["a", "b"] * 5, "not integers"), ([[0], [1, 2]], "not integers")])
def test_labels_that_are_no_integers_are_one_line(tmp_path, targets, text):
    (tmp_path / "rows.py").write_text(
        f"class Rows:\n    targets = {targets}\n    def __len__(self): return 10\n"
        "    def __getitem__(self, row): return [[0.0]], 0\nrows = Rows()\n"
    )
    with pytest.raises(UserError, match=text):
        load_dataset(f"{tmp_path}/rows.py:rows", split=0.5)


def test_targets_of_other_rows_do_not_divide(tmp_path):
    (tmp_path / "rows.py").write_text(
        "class Rows:\n    targets = [0, 1]\n    classes = ['a', 'b']\n    def __len__(self): return 10\n"
        "    def __getitem__(self, row): return [[0.0]], row % 2\nrows = Rows()\n"
    )
    assert len(load_dataset(f"{tmp_path}/rows.py:rows", split=0.5).train) == 5
