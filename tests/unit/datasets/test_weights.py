"""Weights of rows and of classes, and the order of an epoch in which classes count the same."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refused
from support.row_data import CLASSES, arrays, write_images

from hvdtrain.config.options import Config
from hvdtrain.datasets import sharding
from hvdtrain.datasets.division import split_rows
from hvdtrain.datasets.formats.python_objects import as_source
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.streams import Stream
from hvdtrain.datasets.weights import Weighted, Weighting
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset

LABELS = np.array([0] * 6 + [1] * 3 + [2])


def weighting(labels=LABELS, classes=CLASSES, weights=None, **options):
    rows = np.zeros((len(labels), 1), np.float32), np.asarray(labels)
    source = as_source("rows", rows if weights is None else Weighted(rows, weights))
    return Weighting(Config(**options), Dataset("rows", source, source, classes), 1)


@pytest.mark.guarantee("same-global-batches")
@given(labels=st.lists(st.integers(-3, 5), min_size=1, max_size=60), epoch=st.integers(0, 3))
def test_a_balanced_epoch_has_each_class_and_each_row_of_it_as_often_as_the_others(labels, epoch):
    labels = np.array(labels)
    order = sharding.balanced_order(0, epoch, labels)
    assert len(order) == len(labels) and np.array_equal(order, sharding.balanced_order(0, epoch, labels))
    taken = np.bincount(order, minlength=len(labels))
    of_classes = [taken[labels == label] for label in np.unique(labels)]
    assert max(counts.sum() for counts in of_classes) - min(counts.sum() for counts in of_classes) <= 1
    assert all(np.ptp(counts) <= 1 for counts in of_classes)


def test_a_balanced_epoch_is_the_same_in_all_versions():
    assert sharding.balanced_order(0, 1, LABELS).tolist() == [7, 9, 9, 8, 1, 9, 9, 6, 0, 2]


def test_class_weights_are_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    expected = sklearn.compute_sample_weight("balanced", LABELS)
    assert weighting(class_weights="balanced").of_training == pytest.approx(expected)
    assert weighting(LABELS == 0, class_weights="balanced").of_training.sum() == pytest.approx(10)


def test_weights_of_classes_and_rows_are_multiplied():
    named = weighting(weights=np.arange(10), class_weights="cat=2.5,bee=0")
    assert named.of_training.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 22.5]
    assert weighting(classes=(), class_weights="2=3").of_training.tolist() == [1] * 9 + [3]
    commas = weighting(classes=("a, b", "c=d", "e"), class_weights="a, b=2,c=d=3")
    assert commas.of_training.tolist() == [2] * 6 + [3] * 3 + [1]
    assert weighting().of_training is None and weighting(sample="balanced").of_training is None


def test_evaluated_rows_have_the_weights_of_training():
    balanced, rows = weighting(class_weights="balanced"), np.arange(3)
    assert balanced.of_evaluated("test", rows, (rows, np.array([2, 0, 7]))) == pytest.approx([10 / 3, 10 / 18, 1])
    assert weighting(weights=np.arange(10)).of_evaluated("test", rows, (rows, rows)).tolist() == [0, 1, 2]
    assert weighting().of_evaluated("test", rows, (rows, rows)) is None


class RowsWithoutTargets:
    def __len__(self):
        return len(LABELS)

    def __getitem__(self, row):
        return np.zeros(1, np.float32), int(LABELS[row])


def test_classes_are_known_of_files_and_of_objects_whose_rows_are_read(tmp_path):
    files = load_dataset(str(write_images(tmp_path / "images")))
    of_files = Weighting(Config(class_weights="balanced"), files, 1).of_training
    assert of_files == pytest.approx([1] * len(arrays("train")[1]))
    source = as_source("rows", RowsWithoutTargets())
    of_objects = Weighting(Config(class_weights="balanced"), Dataset("rows", source, source, ()), 1).of_training
    assert of_objects == pytest.approx(weighting(class_weights="balanced").of_training)


def test_weights_follow_their_rows_and_belong_to_the_data(tmp_path):
    path = tmp_path / "rows.py"
    path.write_text("import numpy as np\nx, y = np.zeros((20, 1, 2), np.uint8), np.arange(20) % 2\nw = np.arange(20)\n")
    with path.open("a") as file:
        file.write("import hvdtrain\nthree = (x, y, w), None\ntwo = (x, y), None\n")
        file.write("wrapped = hvdtrain.Weighted((x, y), w), None, 2\nalone = hvdtrain.Weighted((x, y), w)\n")
    names = ("three", "two", "wrapped", "alone")
    three, two, wrapped, alone = (load_dataset(f"{path}:{name}", split=0.5) for name in names)
    assert three.fingerprint == wrapped.fingerprint == alone.fingerprint != two.fingerprint
    assert sorted([*three.train.weights, *three.test.weights]) == list(range(20))
    first, _ = split_rows(np.arange(20) % 2, 20, 0.5, 0)
    assert three.train.weights.tolist() == wrapped.train.weights.tolist() == first.tolist()


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (np.ones(9), "rows: the weights are float64 of shape (9,), for 10 row(s)"),
        (np.ones((10, 1)), "shape (10, 1)"),
        (["a"] * 10, "the weights are <U1"),
        (np.arange(10) - 4, "the weight of row 0 is -4"),
        (np.full(10, np.nan), "the weight of row 0 is nan"),
        (np.full(10, 1e308), "the weight of row 0 is 1e+308"),
    ],
)
def test_weights_that_are_none(weights, text):
    refused(lambda: weighting(weights=weights), "rows: the weight", text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cow=2", "--class-weights cow=2: there is no class cow; the classes are ape, bee, cat"),
        ("bees=2", "there is no class bees (did you mean bee?)"),
        ("bee=-1", "the weight of bee is not from 0 to 1e+100"),
        ("bee=1e308", "the weight of bee is not from 0 to 1e+100"),
        ("bee=x", "the weight of bee, 'x', is not a number"),
        ("bee=nan", "the weight of bee, 'nan', is not a number"),
        ("bee=1,bee=2", "names a class twice"),
        ("weights.json", "is neither balanced nor NAME=WEIGHT"),
        ("balanced ", "has spaces around it"),
    ],
)
def test_class_weights_that_are_none(text, problem):
    refused(lambda: weighting(class_weights=text).of_training, problem, option="class_weights")


@pytest.mark.parametrize("given", [{"class_weights": "balanced"}, {"sample": "balanced"}])
def test_rows_without_classes(given):
    (option,) = given
    for labels, text in ((np.arange(3) / 2, "labels of float64"), (np.zeros((4, 1), int), "shape (4, 1)")):
        refused(lambda labels=labels: weighting(labels, **given).digest, text, option=option)
    single = as_source("rows", np.zeros((3, 2)))
    refused(lambda: Weighting(Config(**given), Dataset("rows", single, single, ()), 1).digest, "no array of classes")
    stream = as_source("rows", Stream(lambda epoch: iter([(0.0, 1)] * 3), rows=3))
    refused(lambda: Weighting(Config(**given), Dataset("rows", stream, stream, ()), 1).digest, "is a stream")


def test_a_step_without_weight_is_found_before_the_first():
    check = functools.partial(weighting(weights=LABELS == 2).check_steps, epochs=3, global_batch=5, steps=2)
    refused(check, "rows: all rows of step", "of epoch 1 have weight 0", "a larger --batch-size")
    weighting(weights=LABELS == 2).check_steps(epochs=3, global_batch=10, steps=1)
    with pytest.raises(UserError, match="step 1 of epoch 1"):
        weighting(class_weights="ape=0,bee=0,cat=0").check_steps(epochs=1, global_batch=10, steps=1)
