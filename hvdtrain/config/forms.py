"""Options whose texts have a form of their own, such as 0.9:0.999; `parse` raises ValueError for other texts."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from hvdtrain.config.option import convert, facts, option, types
from hvdtrain.system.text import did_you_mean

NONE, FP16, POWERSGD = "none", "fp16", "powersgd"
PACKED = ("bf16", "int8")
"""Methods of --compression that send each value in fewer bytes; fp16 is Horovod's own."""
MAX_RANK = 256
"""Factors of a higher rank are larger than the matrices of common layers."""
MAX_RANGE = 1000
"""Steps of --timeline: what is recorded of them is kept in memory, and written into one file."""
SHARE = re.compile(r"\d{1,3}(\.\d{0,12})?|\.\d{1,12}", re.ASCII)


def _numbers(kind: Any, given: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """The numbers in texts, as fields of a dataclass of options; without those that are left out or empty."""
    if len(given) > len(fields):
        raise ValueError("has too many values")
    values: dict[str, Any] = {field: text for field, text in zip(fields, given, strict=False) if text}
    for field, text in values.items():
        try:
            values[field] = convert(text, types(kind)[field], strict=False)
        except ValueError:
            raise ValueError(f"{text!r:.80} is not a value of {field.upper()}") from None
        if problem := facts(kind)[field].problem(values[field]):
            raise ValueError(f"{field.upper()} {problem}")
    return values


def _match(pattern: str, text: str, problem: str) -> re.Match[str]:
    if match := re.fullmatch(pattern, text, re.ASCII):
        return match
    raise ValueError(problem)


@dataclass(frozen=True)
class Betas:
    """Decay rates of adam and adamw, of the mean of gradients and of that of squared gradients: BETA1:BETA2."""

    beta1: float = option(0.9, minimum=0, below=1)
    beta2: float = option(0.999, minimum=0, below=1)

    @classmethod
    def parse(cls, text: str) -> Betas:
        return cls(**_numbers(cls, text.split(":"), ("beta1", "beta2")))


def check_name(text: str) -> None:
    """Raise ValueError for a name of a run under which the commands that list runs would not find it."""
    if "/" in text:
        raise ValueError("contains /, but lists of runs show only the folders that are directly in one")
    if text.startswith("."):
        raise ValueError("begins with a dot, and lists of runs leave out such folders")


class Method(NamedTuple):
    """A method, as --compression names it: how much of a gradient ranks send to each other."""

    name: str
    rank: int = 0
    """Of powersgd: the rank of the matrices that it sends in place of gradients."""

    def __str__(self) -> str:
        return f"{self.name}:{self.rank}" if self.rank else self.name


def parse_method(text: str) -> Method:
    """The method that --compression names."""
    if text in (NONE, FP16, *PACKED):
        return Method(text)
    rank = int(_match(rf"{POWERSGD}:([1-9]\d{{0,2}})", text, "not a method of compression")[1])
    if rank > MAX_RANK:
        raise ValueError(f"R is above {MAX_RANK}")
    return Method(POWERSGD, rank)


def parse_image_size(text: str) -> tuple[int | None, int, int]:
    """Channels, height and width, as --image-size has them; channels are None if the text has none."""
    _match(r"([13]x)?[1-9]\d{0,4}x[1-9]\d{0,4}", text, "is not an image size")
    *channels, height, width = map(int, text.split("x"))
    return channels[0] if channels else None, height, width


@dataclass(frozen=True)
class Intervals:
    """Steps and seconds between checkpoints; 0 for none by steps, or by time."""

    steps: int = option(0, minimum=0)
    seconds: float = option(60.0, minimum=0)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Intervals:
        """The last number of steps and the last time, as 60s, in the texts."""
        given: dict[str, Any] = {}
        for text in texts:
            field, number = "seconds" if text.endswith("s") else "steps", text.removesuffix("s")
            if not number:
                raise ValueError("has no number")
            given |= _numbers(cls, [number], (field,))
        return cls(**given)


SCHEDULES = {
    "constant": (),
    "step": ("factor", "epochs"),
    "cosine": (),
    "polynomial": ("power",),
    "onecycle": ("share",),
}
"""By kind of schedule, the arguments that follow it."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a run, as KIND:ARGUMENT:...; each argument may be left out."""

    kind: str = option("cosine")
    factor: float = option(0.1, above=0, maximum=1)
    """Of step: what it multiplies the learning rate by."""
    epochs: int = option(5, above=0)
    """Of step: epochs between two changes."""
    power: float = option(1.0, above=0)
    """Of polynomial; 1 falls linearly to 0."""
    share: float = option(0.3, minimum=0, below=1)
    """Of onecycle: share of the run in which the learning rate rises."""

    @classmethod
    @functools.cache  # asked for in each step
    def parse(cls, text: str) -> Schedule:
        kind, *given = text.split(":")
        if kind not in SCHEDULES:
            raise ValueError(f"no such schedule{did_you_mean(kind, SCHEDULES)}")
        return cls(kind, **_numbers(cls, given, SCHEDULES[kind]))


BALANCED = "balanced"
"""The value of --class-weights, and of --sample, by which all classes count the same."""
MAX_WEIGHT = 1e100
"""Of a class, and of a row: sums of their products are finite."""
CLASS_WEIGHT = re.compile(r"(.+?)=([^=,]+)(?:,|$)", re.DOTALL)


def parse_class_weights(text: str) -> dict[str, float]:
    """The weights that --class-weights gives to classes by name; none for BALANCED. A name may have commas."""
    if text == BALANCED:
        return {}
    given = [(match[1].strip(), match[2].strip(), match[0]) for match in CLASS_WEIGHT.finditer(text)]
    if "".join(whole for *_, whole in given) != text:
        raise ValueError(f"is neither {BALANCED} nor NAME=WEIGHT,...")
    weights: dict[str, float] = {}
    for name, number, _ in given:
        try:
            weights[name] = convert(number, float, strict=False)
        except ValueError:
            raise ValueError(f"the weight of {name:.80}, {number!r:.80}, is not a number") from None
        if not 0 <= weights[name] <= MAX_WEIGHT:
            raise ValueError(f"the weight of {name:.80} is not from 0 to {MAX_WEIGHT:g}")
    if len(weights) < len(given):
        raise ValueError("names a class twice")
    return weights


class Split(NamedTuple):
    """Shares of rows; --split has TRAIN or TRAIN/VALIDATION/TEST of all rows, or TRAIN/VALIDATION of training rows."""

    untested: float
    """Share of all rows that are no test rows; 0 for data that has a test part."""
    validation: float
    """Share of these, or of the training rows, that is kept apart for validation; 0 for none."""

    @classmethod
    def parse(cls, text: str) -> Split:
        """The shares in the text, which is empty for data that is divided already."""
        if not text:
            return cls(0.0, 0.0)
        if not all(map(SHARE.fullmatch, text.split("/"))) or text.count("/") > 2:
            raise ValueError("is not a list of one to three shares")
        shares = [Fraction(share) for share in text.split("/")]
        if len(shares) == 1:
            shares += [Fraction(0), 1 - shares[0]]
        train, validation, *test = shares
        if sum(shares) != 1 or min(train, *(test or [validation])) <= 0:
            raise ValueError(f"the sum of its shares is {float(sum(shares)):g}, and not 1, or a part has no rows")
        # Exact until here, so that 0.9/0.1 is a share of 0.1.
        untested = train + validation
        return cls(float(untested) if test else 0.0, float(validation / untested))


@dataclass(frozen=True)
class StepRange:
    """Steps `first` to `last` - 1, counted from 0; --timeline has it as FIRST:LAST."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    def __len__(self) -> int:
        return self.last - self.first

    @classmethod
    def parse(cls, text: str) -> StepRange:
        match = _match(r"(\d{1,15}):(\d{1,15})", text, "is not FIRST:LAST")
        first, last = map(int, match.groups())
        if not 0 < last - first <= MAX_RANGE:
            raise ValueError(f"has {last - first} steps")
        return cls(first, last)
