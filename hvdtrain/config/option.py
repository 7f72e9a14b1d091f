"""What an option says about itself where it is defined, and its values: from TOML, JSON and text, and back."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import math
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hvdtrain.errors import UserError
from hvdtrain.system.files import NOT_LOCAL, is_url
from hvdtrain.system.text import did_you_mean

NUMBER_LIMIT = 1 << 53
"""Numbers of options are below it: JSON and float64 hold integers exactly up to here."""
SHOWN_CHARACTERS = 80
"""How much of an invalid value a message shows."""


class Resume(enum.Enum):
    """What holds for an option of a resumed run that differs from that of the checkpoint."""

    NETWORK = "an error unless the layers are the same, under any name"
    SAME = "an error: the checkpoint has no meaning with another value"
    DATA = "an error unless the images stay the same: it is part of the data's fingerprint"
    POSITION = "the position is counted anew, so that each row is still taken once in an epoch"
    STATE = "the optimizer's state is converted; what the checkpoint lacks starts from its initial value"
    FROM_HERE = "it applies to the steps from here on"


@dataclass(frozen=True)
class Option:
    """What is known about an option, whatever its value is."""

    group: str = ""
    """Its heading in --help; its text there is the docstring below it."""
    minimum: float | None = None
    above: float | None = None
    """The value must be larger than this."""
    maximum: float | None = None
    below: float = NUMBER_LIMIT
    resume: Resume = Resume.FROM_HERE
    per_rank: bool = False
    """Whether ranks may have different values. They compare all other options, as these decide which collectives a rank
    calls: with different values, ranks would wait for each other for ever."""
    decided_by: Literal["", "script", "task", "optimizer", "schedule"] = ""
    """The user's code that decides it instead, so that records leave it out: a script with a training loop of its own;
    a task, and scripts; or the method of a task, where it has that, and scripts."""
    affects_speed: bool = False
    """Whether it decides how long a step takes, so that only runs with the same value compare in speed."""
    only_distributes: bool = False
    """Whether it decides only how work is distributed, so that a single process may differ in it."""
    is_common: bool = False
    """Whether the short --help shows it."""
    is_place: bool = False
    """Whether it says where a run is, so that every run has a value of its own."""
    in_sweep: str = ""
    """If a sweep gives it to each trial itself: what to do instead."""
    parse: Callable[[Any], Any] | None = None
    """Of an option whose text has a form of its own: what reads it. Raises ValueError."""
    form: str = ""
    """That form, as messages have it."""
    is_path: bool = False
    """Whether its text is a path of this host, as those of type `Path` always are."""
    is_positional: bool = False
    is_repeated: bool = False
    """Whether each of its values, if it has several, is given after the option's name."""
    is_switch: bool = False
    """Whether a bool has no form with --no- in front."""

    def problem(self, value: Any) -> str:
        """Why a number is out of the option's range, or a path is a URL; empty if it is neither."""
        if (isinstance(value, Path) or self.is_path) and is_url(value):
            return NOT_LOCAL
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        # Written so that NaN is caught.
        if self.above is not None and not value > self.above:
            return f"must be above {self.above}"
        if self.minimum is not None and not value >= self.minimum:
            return f"must be {self.minimum} or more"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be {self.maximum} or less"
        if not value < self.below:
            return f"must be below {self.below}" if self.below < NUMBER_LIMIT else "is too large"
        return ""

    def text_problem(self, value: Any) -> str:
        """Why a text, or one of several, is not of the option's form; empty if it is."""
        texts = value if isinstance(value, tuple) else (value,)
        if not all(text and text == text.strip() for text in texts):
            return "is empty, or has spaces around it"
        try:
            self.parse(value)  # type: ignore[misc]
        except ValueError as error:
            return str(error)
        return ""


def option(default: Any, group: str = "", **facts: Any) -> Any:
    """A field of a dataclass of options. facts: fields of `Option`."""
    return dataclasses.field(default=default, metadata={Option: Option(group, **facts)})


def positional(**facts: Any) -> Any:
    """A positional argument, as a field of a dataclass of options. facts: fields of `Option`."""
    return dataclasses.field(metadata={Option: Option(is_positional=True, **facts)})


def facts(kind: type) -> dict[str, Option]:
    """By name in Python, what each option of this dataclass says about itself."""
    return {field.name: field.metadata[Option] for field in dataclasses.fields(kind)}


@functools.cache
def texts(kind: type) -> dict[str, str]:
    """By name in Python, the text of each option of this dataclass in --help: the docstring below its definition."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    documented: dict[str, str] = {}
    for statement, after in itertools.pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            documented[statement.target.id] = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
    return documented


@functools.cache
def types(kind: type) -> dict[str, Any]:
    """By name in Python, the type of each option of this dataclass."""
    return get_type_hints(kind)


ARGUMENT = "arg."
"""Before the name of an argument of a task, where options and arguments are next to each other."""


def key(name: str) -> str:
    """An option as users write it, without the dashes in front: `batch-size`."""
    return name.replace("_", "-")


def invalid(name: str, value: Any, problem: str, remedy: str = "") -> UserError:
    return UserError(f"--{key(name)} {value}".rstrip() + f": {problem}", remedy, option=name)


def convert(value: Any, kind: Any, strict: bool = True) -> Any:
    """A value of JSON or TOML as one of an option of this type. Raises ValueError if it is of another type.

    An option that takes text also takes a number or a path, and one that takes several texts a single one.
    strict: whether texts do not stand for finite numbers and for truth values.
    """
    if getattr(value, "shape", None) == ():
        value = value.item()  # a number of NumPy or a framework
    if kind is str:
        value = _as_text(value)
    elif kind == tuple[str, ...]:
        texts = (value,) if isinstance(value, str | int | float) else value
        value = list(map(_as_text, texts)) if isinstance(texts, list | tuple) else texts
    import msgspec  # not for the launcher, which starts at once

    converted = msgspec.convert(value, kind, strict=strict, dec_hook=_path)
    if isinstance(converted, float) and not (strict or math.isfinite(converted)):
        raise ValueError(f"{value} is not finite")
    return converted


def accepted(name: str, value: Any, kind: Any, given: str, strict: bool = True) -> Any:
    """What `convert` returns, for the option of this name. Raises UserError, which begins with `given`.

    given: the option and its value, as the user wrote them.
    """
    try:
        return convert(value, kind, strict)
    except ValueError:
        hint = did_you_mean(value, choices(kind)) if isinstance(value, str) else ""
        raise UserError(f"{given} is not valid{hint}", f"give {_accepted(kind)}", option=name) from None


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float | Path) and not isinstance(value, bool) else value


def _path(kind: type, value: Any) -> Path:
    if kind is Path and isinstance(value, str | Path):
        return value if isinstance(value, Path) else Path(value)
    raise ValueError(f"{value!r:.80} is not a path")


def as_options(options: Any) -> None:
    """Give values of a dataclass of options their types, where a program gave others that stand for them.

    Raises UserError for values of other types, out of their range, or of another form.
    """
    for name, about in facts(type(options)).items():
        value, default = getattr(options, name), getattr(type(options), name, dataclasses.MISSING)
        if value is default:
            continue
        kind = types(options.__class__)[name]
        value = accepted(name, value, kind, f"{key(name)} = {value!r:.{SHOWN_CHARACTERS}}")
        object.__setattr__(options, name, value)
        items = value if isinstance(value, tuple) else (value,)
        problem = next(filter(None, map(about.problem, items)), "")
        remedy = "" if problem == NOT_LOCAL else "give another number"
        if texts := choices(kind):
            remedy += f", or {', '.join(texts)}"
        if about.parse and value != default:
            problem, remedy = about.text_problem(value), f"give {about.form}"
        if problem:
            raise invalid(name, " ".join(map(str, items)), problem, remedy)


def from_toml(name: str, value: Any, kind: Any, about: Option, where: str) -> Any:
    """The option's value, from a value of a TOML file. Raises UserError, whose message begins with `where`."""
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{where}: the value of {key(name)} has a null character", "remove it", option=name)
    if isinstance(value, str) and (Path in alternatives(kind) or about.is_path):
        value = os.path.expanduser(value)  # as a shell does
    return accepted(name, value, kind, f"{where}: {key(name)} = {_shown(value)}")


def to_toml(value: bool | int | float | str | Path | tuple[str, ...]) -> str:
    """A value in TOML. Texts are quoted, with escapes for characters that would not print."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, str | Path):
        return '"' + "".join(map(_escaped, f"{value}")) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with paths as texts and tuples as lists, as JSON has them."""
    return json.loads(json.dumps(values, default=format))


def arguments(values: Mapping[str, Any]) -> list[str]:
    """The command-line arguments that give these options these values; none of them is None."""
    given = []
    for name, value in values.items():
        if isinstance(value, bool):
            given.append(f"--{'' if value else 'no-'}{key(name)}")
        else:
            given += [f"--{key(name)}={item}" for item in (value if isinstance(value, tuple | list) else (value,))]
    return given


def choices(kind: Any) -> list[str]:
    """The texts that an option of this type accepts; empty if it accepts any."""
    literals = [alternative for alternative in alternatives(kind) if get_origin(alternative) is Literal]
    return [choice for literal in literals for choice in get_args(literal)]


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that an option accepts in addition to None."""
    if get_origin(kind) is tuple:
        return (kind,)
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(alternative for alternative in kinds if alternative is not NoneType)


def _accepted(kind: Any) -> str:
    """What an option accepts, for the remedy of a message."""
    if get_origin(kind) is tuple:
        return "an array of texts in quotes"
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text in quotes", Path: "text in quotes"}
    kinds = [names[alternative] for alternative in alternatives(kind) if alternative in names]
    texts = ", ".join(map(json.dumps, choices(kind)))
    return " or ".join([*kinds, *([texts if kinds else f"one of {texts}"] if texts else [])])


def _escaped(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    text = to_toml(value) if isinstance(value, bool | int | float | str) else str(value)  # dates and times
    return text[:SHOWN_CHARACTERS]
