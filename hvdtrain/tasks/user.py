"""A task: a class of the user's with data, model, losses and metrics."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import traceback
import warnings
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hvdtrain.config.option import facts
from hvdtrain.config.options import Config
from hvdtrain.datasets.division import UNDIVIDED, Division
from hvdtrain.datasets.formats.python_objects import load_parts, parts_of
from hvdtrain.datasets.rows import Forms, describe_forms, forms_of
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.interfaces.reading import Dataset, Part, Source
from hvdtrain.system.start_folder import from_start
from hvdtrain.tasks import methods
from hvdtrain.tasks.rows import AugmentedRows, LabelCheck
from hvdtrain.tasks.target import MAX_CONFUSED, TRIED_ROWS, Target

T = TypeVar("T")
PACKAGE = Path(__file__).parents[1]
TRUTH_VALUES = {"true": True, "false": False}
"""As TOML and command lines have them; Python's own are literals."""


class TaskError(UserError):
    """A task of the user's is at fault. problem: what is wrong, without the task's name."""

    problem = ""

    @classmethod
    def of(cls, name: str, problem: str, remedy: str) -> TaskError:
        error = cls(f"--model {name}: {problem}", remedy, option="model")
        error.problem = problem
        return error


@dataclass(frozen=True, eq=False)
class UserTask(Target):
    """A task, and its data.

    name: FILE.py:CLASS, as --model has it. options: what --arg gave. task: the user's object. inputs: number of arrays
    of a row that the model gets; the losses get the others.
    """

    name: str
    options: Mapping[str, Any]
    task: Any
    dataset: Dataset
    inputs: int
    skip_bad_rows: bool = False
    loader_spec: dict[str, Any] | None = None
    advice: list[str] = field(default_factory=list)
    """What is probably wrong with the model, as its framework finds out."""
    row_counts: list[int] = field(default_factory=lambda: [TRIED_ROWS])
    """Numbers of rows with which the model is tried out: few, and those of a step, for a model that takes no others."""
    kind = "task"

    @property
    def labels_at(self) -> int:  # type: ignore[override]
        return self.inputs

    @property
    def ignored_options(self) -> Sequence[str]:
        by = {"task", *(by for by in ("optimizer", "schedule") if self.facts[f"{by}_method"])}
        return [name for name, about in facts(Config).items() if about.decided_by in by]

    @property
    def facts(self) -> dict[str, Any]:
        optimizer, schedule = (self.has(method) and method for method in ("optimizer", "schedule"))
        # The options of a schedule are for the optimizer of the options.
        return {
            **super().facts,
            "task": self.name,
            "optimizer_method": optimizer,
            "schedule_method": schedule or optimizer,
        }

    @functools.cached_property
    def labels(self) -> LabelCheck:
        return LabelCheck(self.name, self.dataset, self.inputs, self.skip_bad_rows)

    def confused_classes(self, dataset: Dataset) -> int:
        classes = 0 if self.has("losses") else self.labels.classes or 0
        return classes if classes <= MAX_CONFUSED else 0

    def record(self) -> dict[str, Any]:
        return {"task": self.name, "options": dict(self.options)}

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """The folder of the task's file may be named from another one, or have been moved."""
        names = [os.path.basename(str(one.get("task", ""))) for one in (self.record(), record)]
        return super().is_of({**record, "task": self.name}) and names[0] == names[1]

    def problems(self, dataset: Dataset) -> list[str]:
        return [*super().problems(dataset), *self.advice]

    @property
    def has_unused_parameters(self) -> bool:
        """Whether the task says that parameters may get no gradient in a step, which some strategies must know."""
        return getattr(self.task, "unused_parameters", False) is True

    @property
    def mixes_rows(self) -> bool:
        return getattr(self.task, "mixes_rows", False) is True

    def has(self, method: str) -> bool:
        return callable(getattr(self.task, method, None))

    def call(self, method: str, *arguments: Any) -> Any:
        """What the task's own method returns. Raises UserError, with the line, if it fails."""
        return _report(self.name, f"{method}()", getattr(self.task, method), *arguments)

    def guard(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the user's returns; what: names it. Raises UserError, with the line, if it fails."""
        return _report(self.name, what, function, *arguments)

    def try_out(self, function: Callable[[tuple[np.ndarray, ...]], T]) -> T:
        """What a function returns for the first rows: for few, or if a framework fails on them for those of a step."""
        try:
            return function(self.first_rows())
        except UserError as error:
            if not error.__cause__ or len(self.row_counts) == 1:
                raise
        del self.row_counts[0]
        return self.try_out(function)

    def expect_rows(self, count: int) -> None:
        """Each step has so many rows. Another number is tried first, so that a model is known that takes only these."""
        self.row_counts[:] = [TRIED_ROWS + (count == TRIED_ROWS), count]

    @property
    def needed_rows(self) -> int:
        return self.row_counts[0] if len(self.row_counts) == 1 else 0

    def first_rows(self) -> tuple[np.ndarray, ...]:
        """The first training rows, on which the task is tried out."""
        return self.tried_rows(self.dataset, "train", min(self.row_counts[0], len(self.dataset.train)))

    def tried_rows(self, dataset: Dataset, part: Part, count: int) -> tuple[np.ndarray, ...]:
        rows = super().tried_rows(dataset, part, count)
        if self.has("losses"):
            return rows
        # Labels of the default loss may be wrong, which is not known before the model's outputs: 0 is always one.
        return (*rows[: self.inputs], *map(np.zeros_like, rows[self.inputs :]))

    def error(self, method: str, problem: str, remedy: str) -> UserError:
        return TaskError.of(self.name, f"{method}() {problem}", remedy)


def make_task(
    name: str, kind: Any, settings: Sequence[str] = (), skip_bad_rows: bool = False, division: Division = UNDIVIDED
) -> UserTask:
    """The task of this class, or an object of one, with its data.

    settings: NAME=VALUE for each argument of the class; a value that is neither a Python literal nor true or false is a
    text. skip_bad_rows: replace rows that cannot be read (--on-bad-row). division: of the rows that data() returns.
    Raises UserError for what is not a task, for arguments that the class does not have, and for errors in its data.
    """
    options = _parse(name, settings)
    task = _construct(name, kind, options)
    if wrong := methods.mistake(task):
        raise TaskError.of(name, *wrong)
    inputs = getattr(task, "inputs", 1)
    if type(inputs) is not int or inputs < 1:
        raise UserError(f"--model {name}: inputs is {inputs!r:.60}", "give the number of arrays that the model gets")
    dataset = _load_data(name, task, inputs, skip_bad_rows, division)
    return UserTask(name, options, task, dataset, inputs, skip_bad_rows)


def _report(name: str, what: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Call the user's code; an error of any kind becomes a UserError of one line, which names file and line.

    Where that error ends the process, it has the traceback in the rank's log (`training.process`).
    """
    try:
        return function(*arguments, **options)
    except (HvdtrainError, BdbQuit):
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        problem = f"{what} failed{_place(name, error)} ({type(error).__name__}: {message:.300})"
        raise TaskError.of(name, problem, "correct the task") from error


def _place(name: str, error: Exception) -> str:
    """Where the user's code failed: the innermost line in the folder of the task's file, or below."""
    folder = from_start(os.path.expanduser(name.rpartition(":")[0])).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(folder) and "site-packages" not in file.parts and PACKAGE not in file.parents:
            return f" in line {frame.lineno} of {file.relative_to(folder)}"
    return ""


def _parse(name: str, settings: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not (equals and key.isidentifier()):
            raise UserError(f"--arg {setting}: is not of the form NAME=VALUE", "give for example --arg width=64")
        if key in options:
            raise UserError(f"--arg {setting}: {key} is given twice", "give each name once")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a text that is almost a literal, such as 1or2
                options[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = text
        if not isinstance(options[key], str | int | float | bool | None):
            options[key] = text
    return options


def _construct(name: str, kind: Any, options: dict[str, Any]) -> Any:
    if not callable(kind):
        if options:
            raise UserError(f"--arg {next(iter(options))}: {name} is not a class", "give --arg to a class")
        return kind
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):
        raise UserError(f"--model {name}: is not a task", "give a class with the methods data and model") from None
    try:
        signature.bind(**options)
    except TypeError as error:
        remedy = f"give --arg NAME=VALUE for its arguments: {', '.join(signature.parameters) or 'it takes none'}"
        raise UserError(f"--model {name}: {error}", remedy) from None
    options.update({key: _truth_value(key, value, signature.parameters.get(key)) for key, value in options.items()})
    return _report(name, getattr(kind, "__name__", "the class"), kind, **options)


NO_TYPES = {"class", "typing", "Optional", "Union", "None", "NoneType", "inspect", "_empty"}
"""Words in the text of an annotation, or of none, that are not types of arguments."""


def _truth_value(key: str, value: Any, parameter: inspect.Parameter | None) -> Any:
    """The value of an argument: true or false, in any case, unless the class says that it is a text.

    parameter: None for one of those that `**options` takes. Raises UserError for another value of a bool.
    """
    default, annotation = (parameter.default, parameter.annotation) if parameter else (None, "")
    # Such as `bool | None`, a text or not, `Optional[bool]`, and `Literal["auto"] | bool`.
    kinds = set(re.findall(r"\w+", str(annotation))) - NO_TYPES | {type(default).__name__} & {"str", "bool"}
    word = value.lower() if isinstance(value, str) else value
    if "str" in kinds:
        return value
    if kinds == {"bool"} and word not in (*TRUTH_VALUES, 0, 1, None):
        raise UserError(f"--arg {key}={value}: {key} is true or false", f"give --arg {key}=true or {key}=false")
    return TRUTH_VALUES.get(word, value)


def _load_data(name: str, task: Any, inputs: int, skip: bool, division: Division) -> Dataset:
    where, data = f"--model {name}", parts_of(_report(name, "data()", task.data))
    if division.split:
        if isinstance(data, tuple | list) and len(data) in (2, 3) and any(map(_is_part, data)):
            reason = f"--split: data() returned {_counted(data)}, which are parts already"
            raise UserError(reason, "leave it out, or give TRAIN/VALIDATION", option="split")
        data = (data, None, None)
    elif not isinstance(data, tuple | list) or len(data) not in (2, 3):
        remedy = "return (train, test) or (train, validation, test), or give --split 0.8/0.1/0.1 to divide its rows"
        raise UserError(f"{where}: data() returned {_counted(data)}", remedy)
    train, validation, test = data if len(data) == 3 else (data[0], None, data[1])
    loaded = load_parts(where, train, validation, test, skip, division, labels_at=inputs)
    train, evaluated = loaded.train, {part: source for part, source in loaded.parts.items() if part != "train"}
    trained = _augmented(name, task, train)
    for part, source in evaluated.items():
        _check_forms(name, part, *(forms_of(rows[np.zeros(1, np.int64)]) for rows in (train, trained, source)))
    count = len(forms_of(loaded.test[np.zeros(1, np.int64)]))
    if count < inputs:
        raise UserError(f"--model {name}: a row has {count} array(s), but inputs is {inputs}", "give more arrays a row")
    return replace(loaded, name=name, train=trained)


def _is_part(rows: Any) -> bool:
    """Whether it is rows of data, and not one of their arrays."""
    return isinstance(rows, tuple) or not (
        isinstance(rows, list) or hasattr(rows, "__array__") or hasattr(rows, "asnumpy")
    )


def _counted(data: Any) -> str:
    kind = type(data).__name__
    return f"{kind} of length {len(data)}" if isinstance(data, tuple | list) else kind


def _augmented(name: str, task: Any, train: Source) -> Source:
    """The training rows as the task's augment() changes them, if it has that method."""
    if not callable(getattr(task, "augment", None)):
        return train
    return AugmentedRows(name, train, functools.partial(_report, name, "augment()", task.augment))


def _check_forms(name: str, part: Part, train: Forms, trained: Forms, test: Forms) -> None:
    """Raise UserError unless rows of this part are like training rows; they may have their shapes before
    augmentation.
    """
    types = [[dtype for _, dtype in forms] for forms in (trained, test)]
    shapes = [[shape for shape, _ in forms] for forms in (train, trained, test)]
    if types[0] == types[1] and shapes[2] in shapes[:2]:
        return
    augmented = "" if train == trained else f"; augment() returned {describe_forms(trained)}"
    raise UserError(
        f"--model {name}: training rows are {describe_forms(train)}, {part} rows {describe_forms(test)}{augmented}",
        "return rows of the same shapes and types",
    )
