"""The methods of --compression: how much of a gradient ranks send to each other."""

from __future__ import annotations

import re
from typing import NamedTuple

from hvdtrain.config.option import invalid

NONE, FP16, POWERSGD = "none", "fp16", "powersgd"
PACKED = ("bf16", "int8")
"""Methods that send each value in fewer bytes; fp16 is Horovod's own."""
MAX_RANK = 256
"""Factors of a higher rank are larger than the matrices of common layers."""
LOW_RANK = re.compile(rf"{POWERSGD}:([1-9][0-9]{{0,2}})")


class Method(NamedTuple):
    """A method, as --compression names it."""

    name: str
    rank: int = 0
    """Of powersgd: the rank of the matrices that it sends in place of gradients."""

    def __str__(self) -> str:
        return f"{self.name}:{self.rank}" if self.rank else self.name


def parse_method(text: str) -> Method:
    """The method that --compression names. Raises UserError if it names none."""
    if text in (NONE, FP16, *PACKED):
        return Method(text)
    if (match := LOW_RANK.fullmatch(text)) and int(match[1]) <= MAX_RANK:
        return Method(POWERSGD, int(match[1]))
    remedy = f"use {', '.join((NONE, FP16, *PACKED))}, or {POWERSGD}:R with a rank R from 1 to {MAX_RANK}, such as 2"
    raise invalid("compression", text, "not a method of compression", remedy)
