"""The table that `python -m hvdtrain bench allreduce` writes for programs: allreduce.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.measure.scale.communication import Measured
from hvdtrain.system.files import read_json
from hvdtrain.system.text import printable

REMEDY = "write one with: python -m hvdtrain bench allreduce"


class AllreduceTable(NamedTuple):
    """Measured allreduces of several libraries over the ranks of one job."""

    ranks: int
    hosts: int
    libraries: dict[str, list[Measured]]


def to_table(ranks: int, hosts: int, seconds: Mapping[str, Sequence[Mapping[int, float]]]) -> dict[str, Any]:
    """The content of a file. seconds: for each library, repeats of seconds by number of bytes."""
    rows = []
    for library, repeats in seconds.items():
        for size in sorted(repeats[0]) if repeats else ():
            runs = [one[size] for one in repeats]
            rows.append({"library": library, "bytes": size, "seconds": median(runs), "runs": runs})
    return {"ranks": ranks, "hosts": hosts, "rows": rows}


def read_table(path: Path) -> AllreduceTable:
    """The table in a file. Raises UserError, naming the file, for content that `to_table` does not make."""
    name = printable(str(path))
    try:
        value = read_json(path)
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})", REMEDY) from None
    except (ValueError, RecursionError):
        raise UserError(f"{name}: not JSON", REMEDY) from None
    try:
        ranks, hosts = _count(value["ranks"]), _count(value["hosts"])
        libraries: dict[str, list[Measured]] = {}
        for row in value["rows"]:
            times = [Measured(ranks, _count(row["bytes"]), _seconds(one)) for one in row["runs"]]
            libraries.setdefault(str(row["library"]), []).extend(times)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{name}: not a table of allreduces ({type(error).__name__}: {error})", REMEDY) from None
    if ranks < 2 or hosts > ranks or not any(libraries.values()):
        raise UserError(f"{name}: a table of {ranks} rank(s) on {hosts} host(s) has no allreduce", REMEDY)
    if 1 < hosts < ranks:
        raise UserError(
            f"{name}: a table of {ranks} ranks on {hosts} hosts", "measure the ranks of one host, or one on each"
        )
    return AllreduceTable(ranks, hosts, libraries)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
        raise ValueError(f"{value!r:.40} is not a positive integer")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r:.40} is not a time in seconds")
    return float(value)
