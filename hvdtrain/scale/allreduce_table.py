"""The table that `python -m hvdtrain bench allreduce` writes for programs: allreduce.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.scale.communication import Measured
from hvdtrain.system.files import read_json, write_atomically
from hvdtrain.system.json_text import to_json
from hvdtrain.system.text import printable

REMEDY = "write one with: python -m hvdtrain bench allreduce"


class AllreduceTable(NamedTuple):
    """Measured allreduces of several libraries over the ranks of one job."""

    ranks: int
    hosts: int
    libraries: dict[str, list[Measured]]


def write_table(path: Path, ranks: int, hosts: int, seconds: Mapping[str, Sequence[Mapping[int, float]]]) -> None:
    """Write a table. seconds: for each library, repeats of seconds by number of bytes. Raises OSError."""
    libraries = {
        name: {str(size): [one[size] for one in repeats] for size in sorted(repeats[0])}
        for name, repeats in seconds.items()
        if repeats
    }
    value = {"kind": "allreduce", "ranks": ranks, "hosts": hosts, "seconds": libraries}
    write_atomically(path, to_json(value, indent=1) + "\n")


def read_table(path: Path) -> AllreduceTable:
    """The table in a file. Raises UserError, naming the file, for content that `write_table` does not write."""
    name = printable(str(path))
    try:
        value = read_json(path)
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})", REMEDY) from None
    except (ValueError, RecursionError):
        raise UserError(f"{name}: not JSON", REMEDY) from None
    try:
        ranks, hosts = _count(value["ranks"]), _count(value["hosts"])
        libraries = {
            str(library): [
                Measured(ranks, _count(int(size)), _seconds(one)) for size, times in sizes.items() for one in times
            ]
            for library, sizes in value["seconds"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{name}: not a table of allreduces ({type(error).__name__}: {error})", REMEDY) from None
    if ranks < 2 or hosts > ranks or not any(libraries.values()):
        raise UserError(f"{name}: a table of {ranks} rank(s) on {hosts} host(s) has no allreduce", REMEDY)
    return AllreduceTable(ranks, hosts, {library: found for library, found in libraries.items() if found})


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
        raise ValueError(f"{value!r:.40} is not a positive integer")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r:.40} is not a time in seconds")
    return float(value)
