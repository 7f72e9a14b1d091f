"""Data sets with named columns, as Hugging Face's: pairs, dictionaries, streams, and labels that are texts."""

import sys

import numpy as np
import pytest
from support.row_data import rejected

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.streams import Stream

NAMES = "no", "yes"


class Table:
    """A map-style data set with the attributes of Hugging Face's, for which `datasets` need not be installed."""

    column_names = ["image", "label"]  # noqa: RUF012

    def __init__(self, count=8, texts=False, names=(), label=None):
        self.labels = [label or (NAMES[row % 2] if texts else row % 2) for row in range(count)]
        self.features = {"label": type("ClassLabel", (), {"names": list(names)}) if names else object()}
        self.shape, self.num_rows = (count, 2), count

    def with_format(self, kind):
        return self

    def __len__(self):
        return self.num_rows

    def __getitem__(self, key):
        if key == "label":
            return list(self.labels)
        return {"label": self.labels[key], "image": np.full((4, 4), key, np.uint8)}  # in another order


class IterableDataset:
    """One with `streaming=True`, which may not know its columns."""

    def __init__(self, table, names=None):
        self.table, self.column_names, self.epoch = table, names, 0
        self.features = table.features if names else None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ({**self.table[row], "image": self.table[row]["image"] + 10 * self.epoch} for row in range(8))


def streamed(**options):
    return Stream(IterableDataset(Table(**options)), 8)


def of_function(**options):
    return Stream(lambda epoch: IterableDataset(Table(**options)), 8)


class Texts(Table):
    """One without columns, whose labels are texts."""

    column_names = property()

    def __getitem__(self, key):
        return np.full((4, 4), key, np.uint8), self.labels[key]


GIVEN = {
    "rows of texts": lambda: (Texts(texts=True), Texts(4, texts=True), NAMES),
    "pair": lambda: (Table(), Table(4)),
    "dictionary": lambda: {"train": Table(), "test": Table(4)},
    "pair of texts": lambda: (Table(texts=True), Table(4, texts=True)),
    "texts with names": lambda: (Table(texts=True), Table(4, texts=True), ["no", "yes"]),
    "texts in another order": lambda: (Table(texts=True), Table(4, texts=True), ("yes", "no")),
    "named by its features": lambda: (Table(names=NAMES), Table(4, names=NAMES)),
    "streams": lambda: (streamed(), streamed(), 2),
    "streams that know their columns": lambda: (
        Stream(IterableDataset(Table(names=NAMES), ["image", "label"]), 8), Table(4, names=NAMES)
    ),
    "streams of texts": lambda: (streamed(texts=True), streamed(texts=True), NAMES),
    "streams of functions": lambda: (of_function(texts=True), of_function(texts=True), NAMES),
}  # fmt: skip


def given(tmp_path, monkeypatch, made):
    """The name of data of these rows."""
    monkeypatch.setattr(sys.modules[__name__], "MADE", made, raising=False)
    (tmp_path / "mine.py").write_text(f"import sys\ndef data(): return sys.modules[{__name__!r}].MADE()\n")
    return f"{tmp_path}/mine.py:data"


@pytest.mark.parametrize("form", GIVEN)
def test_rows_are_pairs_of_image_and_label(form, tmp_path, monkeypatch):
    data = load_dataset(given(tmp_path, monkeypatch, GIVEN[form]))
    for source in (data.train, data.test):
        images, labels = source[np.arange(4)]
        assert images.shape == (4, 1, 4, 4) and images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        assert labels.tolist() == ([1, 0, 1, 0] if data.classes == ("yes", "no") else [0, 1, 0, 1])
    numbered = ("0", "1")
    is_named = "text" in form or "know" in form or "named" in form or "functions" in form
    assert data.classes == (numbered if not is_named else ("yes", "no") if "another" in form else NAMES)


def test_a_stream_is_told_the_epoch(tmp_path, monkeypatch):
    data = load_dataset(given(tmp_path, monkeypatch, GIVEN["streams"]))
    read = [data.train.read(np.array([3]), Draw(0, epoch)).arrays[0][0, 0, 0, 0] for epoch in (0, 2, 1)]
    assert read == [3, 23, 13]


def test_one_part_is_divided(tmp_path, monkeypatch):
    data = load_dataset(given(tmp_path, monkeypatch, lambda: Table(texts=True)), split=0.5)
    assert len(data.train) == len(data.test) == 4 and data.train[np.arange(4)][1].sum() == 2  # by class


def test_labels_and_columns_that_are_not_known(tmp_path, monkeypatch):
    def refused(made, *texts):
        rejected(given(tmp_path, monkeypatch, made), *texts)

    refused(lambda: (Table(texts=True), Table(4, label="maybe")), "test (row 0): has the label maybe, which is not")
    refused(lambda: (Table(texts=True), Table(4, texts=True), 2), "train (row 0): has the label no, which is not among")
    refused(lambda: (streamed(texts=True), Table(4, texts=True)), "the number of classes is not known; return (train")
    refused(lambda: (IterableDataset(Table()), Table(4), 2), "how many rows IterableDataset has is not known; give hvd")
    refused(lambda: (Stream(IterableDataset(Table(), ["a", "b"]), 8), Table(4), 2), "label is not known (a, b); name")
    refused(lambda: (streamed(label="x"), Table(4), NAMES), "train (row 0): has the label x, which is not among the")


def test_hugging_faces_own(tmp_path, monkeypatch):
    """The same, with the package."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")

    def table(count):
        rows = [{"image": [[float(row % 2)] * 4] * 4, "label": NAMES[row % 2]} for row in range(count)]
        return datasets.Dataset.from_list(rows).with_format("numpy")

    def stream(count):
        return Stream(table(count).to_iterable_dataset().with_format("numpy"), count)

    for made in (
        lambda: (table(8), table(4)),
        lambda: datasets.DatasetDict({"train": table(8), "test": table(4)}),
        lambda: (stream(8), stream(4), NAMES),
    ):
        data = load_dataset(given(tmp_path, monkeypatch, made))
        images, labels = data.train[np.arange(4)]
        assert data.classes == NAMES and labels.tolist() == images[:, 0, 0, 0].tolist() == [0, 1, 0, 1]
        assert data.test[np.arange(4)][1].tolist() == [0, 1, 0, 1]
