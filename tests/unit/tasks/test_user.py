"""Tasks of the user's own: what is a task, its arguments and its data, and labels outside the model's outputs."""

from __future__ import annotations

import warnings
from typing import Literal, Optional

import numpy as np
import pytest
from support.errors import refused

from hvdtrain.datasets.division import Division
from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import UserError
from hvdtrain.tasks.user import make_task

X, Y = np.zeros((6, 4), np.float32), np.arange(6)


class Task:
    def __init__(self, width=3, name="a", rate=0.5):
        self.width, self.name, self.rate = width, name, rate

    def data(self):
        return (X, Y), (X[:2], Y[:2])

    def model(self):
        return None


def with_data(data, **attributes):
    return type("Own", (Task,), {"data": lambda self: data, **attributes})


class Source:
    fingerprint = "1"

    def __init__(self, *arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, rows):
        return tuple(array[rows] for array in self.arrays)


def test_a_task_and_its_data():
    task = make_task("t.py:Task", Task)
    assert (task.task.width, task.inputs, len(task.dataset.train), len(task.dataset.test)) == (3, 1, 6, 2)
    x, y = task.dataset.train[np.array([4, 1])]
    assert x.shape == (2, 4) and y.tolist() == [4, 1]
    assert task.record() == {"task": "t.py:Task", "options": {}}
    assert make_task("Task", Task(width=9)).task.width == 9, "an object is one, too"


def test_arguments_are_literals_or_texts():
    task = make_task("t.py:Task", Task, ("width=64", "name=deep net", "rate=1e-3"))
    assert (task.task.width, task.task.name, task.task.rate) == (64, "deep net", 1e-3)
    assert make_task("t.py:Task", Task, ("name=[1, 2]",)).task.name == "[1, 2]"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python warns of a literal that it may refuse one day
        assert make_task("t.py:Task", Task, ("name=1or2",)).task.name == "1or2"


class Flags(Task):
    def __init__(
        self,
        flag=False,
        typed: bool | None = None,
        older: Optional[bool] = None,  # noqa: UP045
        text="a",
        word: str | None = None,
        older_word: Optional[str] = None,  # noqa: UP045
        free=None,
        choice: Literal["auto"] | bool = False,
        **more,
    ):
        self.values = {**vars(), **more}


@pytest.mark.parametrize("text", ["true", "TRUE", "False"])
def test_arguments_are_true_or_false(text):
    names = ("flag", "typed", "older", "free", "choice", "more")
    task = make_task("t.py:Flags", Flags, [f"{name}={text}" for name in names])
    expected = text.lower() == "true"
    assert all(task.task.values[name] is expected and task.options[name] is expected for name in names)
    assert make_task("t.py:Flags", Flags, ("typed=None",)).task.values["typed"] is None
    assert make_task("t.py:Flags", Flags, ("choice=auto",)).task.values["choice"] == "auto"
    names = ("text", "word", "older_word")
    task = make_task("t.py:Flags", Flags, [f"{name}={text.lower()}" for name in names])
    assert all(task.task.values[name] == text.lower() for name in names)


@pytest.mark.parametrize("name", ["flag", "typed", "older"])
@pytest.mark.parametrize("value", ["no", "2", "''"])
def test_what_is_neither_true_nor_false_is_refused(name, value):
    refused(lambda: make_task("t.py:Flags", Flags, (f"{name}={value}",)), f"--arg {name}=")


def needs(width): ...


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ((Task, "width"), ["--arg width: is not of the form NAME=VALUE"]),
        ((Task, "=3"), ["--arg =3: is not of the form NAME=VALUE"]),
        ((Task, "width=1", "width=2"), ["--arg width=2: width is given twice"]),
        ((Task, "widht=1"), ["--model t.py:Task: got an unexpected keyword argument 'widht'", "width, name, rate"]),
        (3, ["has no method data"]),
        (type("Empty", (), {"data": Task.data}), ["has no method model"]),
        (needs, ["missing a required argument: 'width'; give --arg NAME=VALUE"]),
        (with_data(None), ["data() returned NoneType; return (train, test)"]),
        (with_data(((X, Y[:2]), (X, Y))), ["the training rows have arrays of length 2, 6"]),
        (with_data(((X, Y), (X[:, :2], Y))), ["training rows are float32 (4,) and int64 (), test rows float32 (2,)"]),
        (with_data(((X, ["a"] * 6), (X, Y))), ["the training rows are float32, list; return arrays of numbers"]),
        (with_data(((X, Y), (X, Y)), inputs=3), ["a row has 2 array(s), but inputs is 3"]),
        (type("Fails", (Task,), {"data": lambda self: 1 / 0}), ["data() failed", "ZeroDivisionError: division"]),
    ],
)
def test_what_is_no_task_and_wrong_settings(kind, texts):
    kind, *settings = kind if isinstance(kind, tuple) else (kind,)
    texts += [] if settings else ["--model t.py:Task: "]
    refused(lambda: make_task("t.py:Task", kind, settings), *texts)


STRANGERS = {
    "losses": ("loss", "Loss", "lossess", "compute_loss", "loss_fn", "criterion", "training_step"),
    "metrics": ("metric", "metrcis", "Metrics", "compute_metrics", "validation_step"),
    "augment": ("augmentation", "augments", "agument"),
    "optimizer": ("optimizers", "configure_optimizers", "optimizr"),
    "schedule": ("lr_scheduler", "scheduler"),
    "data": ("train_dataloader", "val_dataloader"),
}
"""Names of methods that are misspelt or of other programs, by what they stand for."""


@pytest.mark.parametrize(
    ("known", "stranger"), [(known, stranger) for known, strangers in STRANGERS.items() for stranger in strangers]
)
@pytest.mark.parametrize("where", ["method", "static method", "attribute", "base class"])
def test_a_method_that_nothing_would_call_is_refused(known, stranger, where):
    called = {"static method": staticmethod(lambda outputs, labels: 0)}.get(where, lambda *_: 0)
    kind = type("Own", (Task,), {} if where == "attribute" else {stranger: called})
    kind = type("Derived", (kind,), {}) if where == "base class" else kind
    task = kind()
    if where == "attribute":
        setattr(task, stranger, called)
    assert known in refused(lambda: make_task("t.py:Own", task), f" {stranger} ", option="model").remedy


@pytest.mark.parametrize("value", [3, {}, "mse", np.zeros(2)])
@pytest.mark.parametrize("name", ["data", "model", "losses", "metrics", "augment"])
def test_a_method_that_is_none_is_refused(name, value):
    refused(lambda: make_task("t.py:Task", type("Own", (Task,), {name: value})), "--model t.py:Task: ", name)


def test_helpers_of_a_task_are_its_own():
    """A task that has `losses` may call its `loss`; None is as no method; other names and private ones are free."""
    free = dict.fromkeys(("loss", "criterion", "encode", "evaluate", "_metric", "transform", "vocabulary"), len)
    task = make_task("t.py:Own", type("Own", (Task,), {**free, "losses": len, "metrics": None, "augment": None}))
    assert task.has("losses") and not task.has("metrics")
    make_task("t.py:Own", type("Own", (Task,), {"loss": "mse", "optimizer": "adam"}))  # arguments that it keeps
    make_task("t.py:Own", type("Own", (Task,), dict.fromkeys(("classes", "matrix", "argument", "arguments"), len)))
    make_task("t.py:Own", type("Own", (Task,), {"classes": 10}))


@pytest.mark.parametrize(("name", "settings", "same"), [
    ("/elsewhere/t.py:Task", ("width=4",), True), ("../t.py:Task", ("width=4",), True),
    ("/elsewhere/t.py:Task", (), False), ("u.py:Task", ("width=4",), False), ("t.py:Other", ("width=4",), False),
])  # fmt: skip
def test_a_task_is_the_same_from_another_folder(name, settings, same):
    record = make_task("t.py:Task", Task, ("width=4",)).record()
    assert make_task(name, Task, settings).is_of(record) == same
    assert not make_task(name, Task, settings).is_of({"layers": []})


class Rows:
    def __len__(self):
        return 9

    def __getitem__(self, row):
        return 0.0, 0


@pytest.mark.parametrize("part", [(X, Y), Rows()])
def test_parts_are_not_divided_again(part):
    with pytest.raises(UserError, match=r"--split: data\(\) returned tuple of length 2, which are parts already"):
        make_task("mine.py:Own", with_data((part, part)), division=Division(0.5, 0.0, 0))


ROWS, LABELS = np.arange(32, dtype=np.float32).reshape(8, 4), np.array([0, 1, 2, 0, 1, 7, 2, -1])
GOOD = (ROWS[:5], LABELS[:5])


def made(train, test=GOOD, skip=False, **methods):
    methods |= {"data": lambda self: (train, test), "model": lambda self: None}
    return make_task("t.py:Task", type("Task", (), methods), skip_bad_rows=skip)


def read(task, *batches, part="train", workers=0):
    with Reader(task.dataset, workers, check=task.labels) as reader:
        return list(reader.batches(part, map(np.array, batches)))


def larger(self, rows, generators):
    return rows[0], rows[1] + (rows[1] > 1)


@pytest.mark.parametrize(
    ("data", "outputs", "message"),
    [
        ({"train": (ROWS, LABELS)}, 3, "Task: the label of training row 5 is 7, but the model has 3 outputs; "),
        ({"train": GOOD, "test": (ROWS, LABELS)}, 8, "the label of test row 7 is -1, but the model has 8 outputs"),
        ({"train": Source(ROWS, LABELS)}, 0, "training row 0 is 0, but the model has 0 outputs"),
        ({"train": GOOD, "augment": larger}, 3, "the label of training row 2 is 3, but the model has 3 outputs"),
        ({"train": GOOD, "skip": True}, 0, "training row 4 is 1, but the model has 0 outputs, as those"),  # all are bad
    ],
    ids=["memory", "test", "source", "augmented", "skipped"],
)
def test_labels_that_are_known_are_checked_at_once(data, outputs, message):
    made(GOOD).labels.expect(3)
    with pytest.raises(UserError, match=message):
        made(**data).labels.expect(outputs)


@pytest.mark.parametrize("workers", [0, 1])
def test_other_labels_are_checked_when_they_are_read(workers):
    source = Source(ROWS, LABELS)
    source.background = "threads"
    task = made(source)
    assert len(read(task, [5, 7])) == 1, "losses of the task's own may take any labels"
    task.labels.expect(3)
    assert len(read(task, [0, 1], [6], workers=workers)) == 2
    with pytest.raises(UserError, match="the label of training row 7 is -1, but the model has 3 outputs"):
        read(task, [0, 7, 5], workers=workers)


def test_rows_with_wrong_labels_are_skipped_with_that_option():
    task = made((ROWS, LABELS), skip=True)
    task.labels.expect(3)
    (found,) = read(task, [4, 5, 7])
    assert list(found.bad) == [1, 2] and found.arrays[1].tolist() == [1, 1, 1]
    assert "training row 5 is 7" in found.bad[1].reason
    (only_bad,) = read(task, [7, 5])
    assert list(only_bad.bad) == [0, 1] and only_bad.arrays[1].tolist() == [0, 0]
    assert np.array_equal(only_bad.arrays[0], ROWS[[0, 0]])
    assert LABELS[5] == 7


@pytest.mark.parametrize("data", [lambda x, y: (x, y), Source])
def test_the_first_rows_may_have_wrong_labels_too(data):
    task = made(data(ROWS[::-1], LABELS[::-1]), skip=True)  # labels -1, 2, 7, 1, ...
    assert [array.shape for array in task.first_rows()] == [(4, 4), (4,)]
    assert task.first_rows()[1].tolist() == [0, 0, 0, 0], "the trial's losses have labels that each model has"
    task.labels.expect(3)
    (only_bad,) = read(task, [2, 0])
    assert list(only_bad.bad) == [0, 1] and only_bad.arrays[1].tolist() == [2, 2]
    task.labels.expect(1)  # the first label 0 is that of row 4
    (only_bad,) = read(task, [0, 1])
    assert np.array_equal(only_bad.arrays[0], ROWS[[3, 3]])
