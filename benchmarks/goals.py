"""Goals for Horovod's core: checks the results of `python -m hvdtrain bench`, `allreduce.py` and `idle.py`.

usage: python benchmarks/goals.py [FOLDER]   (default: runs/bench)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from hvdtrain.config.rules import OVER_HOROVOD
from hvdtrain.runs.run import RecordedRun

# Horovod's images/s as a share of the fastest other strategy over ranks, at least, by the end of the row's name.
RATIOS = {"/horovod": 0.85, "/horovod/mpi": 0.95}
# Microseconds of an allreduce of two ranks, at most, by library and bytes.
ALLREDUCE_US = {
    ("horovod over MPI", 8): 60,
    ("horovod over Gloo", 8): 300,
    ("horovod over MPI", 1 << 19): 150,
    ("horovod over Gloo", 1 << 19): 700,
}
IDLE_SHARE = 0.015
"""CPU seconds per second of the busiest rank after `hvd.init()` and nothing else, at most."""
AS_SHIPPED, BY_HAND = ", as shipped", "mpi by hand"


def main(argv: list[str]) -> None:
    """Print a table of Markdown; a goal without a result is shown as not measured."""
    folder = Path(*argv) if argv else Path("runs/bench")
    print("| goal | measured (minimum to maximum, runs) | others, same run | limit | |")
    print("| --- | --- | --- | --- | --- |")
    allreduces = allreduce_lines(folder / "allreduce" / "allreduce.json")
    for line in [*ratio_lines(folder), *allreduces, *idle_lines(folder / "idle.json")]:
        print(f"| {' | '.join(line)} |")


def ratio_lines(folder: Path) -> Iterator[list[str]]:
    """Horovod against the fastest other strategy over ranks of each framework; pairs are the jobs of a repeat."""
    found = list(ratios(folder))
    for end, minimum in RATIOS.items():
        if not any(horovod.endswith(end) for horovod, *_ in found):
            goal = f"images/s, FRAMEWORK{end} / fastest other strategy"
            yield cells(goal, [], ".2f", "", f"at least {minimum}", False)
    for horovod, fastest, ranks, pairs in found:
        minimum = next(value for end, value in RATIOS.items() if horovod.endswith(end))
        goal = f"images/s, {horovod} / {fastest}, {ranks} ranks"
        yield cells(goal, pairs, ".2f", "", f"at least {minimum}", median(pairs) >= minimum)


def ratios(folder: Path) -> Iterator[tuple[str, str, int, list[float]]]:
    """Horovod's row, the fastest row of another strategy over ranks, their number of ranks, and the ratios."""
    for (framework, ranks), rows in speeds(folder).items():
        others = [name for name in rows if name.split("/")[1] not in OVER_HOROVOD]
        fastest = max(others, key=lambda name: median(rows[name].values()), default=None)
        for horovod in [f"{framework}{end}" for end in RATIOS if f"{framework}{end}" in rows and fastest]:
            pairs = [speed / rows[fastest][at] for at, speed in rows[horovod].items() if at in rows[fastest]]
            if pairs:
                yield horovod, fastest, ranks, pairs


def speeds(folder: Path) -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    """images/s of the jobs over ranks, by framework and ranks, by row, and by repeat."""
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for path in sorted(folder.glob("*-np*-r*/result.json")):
        run = RecordedRun(path.parent)
        if run.config.ranks > 1 and run.images_per_s:
            framework, strategy = run.options["framework"], run.options["strategy"]
            row = f"{framework}/{strategy}{'/mpi' * (strategy == 'horovod' and run.config.controller == 'MPI')}"
            of_row = found.setdefault((framework, run.config.ranks), {}).setdefault(row, {})
            of_row[path.parent.name.rpartition("-r")[2]] = run.images_per_s
    return found


def allreduce_lines(path: Path) -> Iterator[list[str]]:
    """Time of an allreduce, with those of Horovod as it is shipped and of MPI without Horovod."""
    content = read(path, {"rows": []})
    times = {(row["library"], row["bytes"]): [1e6 * run for run in row["runs"]] for row in content["rows"]}
    for (library, size), limit in ALLREDUCE_US.items():
        runs = times.get((library, size), [])
        others = [
            middle("as shipped ", times.get((library + AS_SHIPPED, size), []), ",.0f"),
            middle("`MPI.Allreduce` ", times.get((BY_HAND, size), []) if library.endswith("MPI") else [], ",.0f"),
        ]
        goal = f"allreduce of {size:,} bytes, {library}, us"
        reached = bool(runs) and median(runs) <= limit
        yield cells(goal, runs, ",.0f", "; ".join(filter(None, others)), f"at most {limit}", reached)


def idle_lines(path: Path) -> Iterator[list[str]]:
    """What a rank costs that does nothing."""
    idle = {row["library"]: [max(ranks) for ranks in row["runs"]] for row in read(path, [])}
    for library in ("horovod over MPI", "horovod over Gloo"):
        runs = idle.get(library, [])
        shipped = middle("as shipped ", idle.get(library + AS_SHIPPED, []), ".1%")
        goal = f"idle cost of the busiest rank, {library}"
        yield cells(goal, runs, ".1%", shipped, f"at most {IDLE_SHARE:.1%}", bool(runs) and median(runs) <= IDLE_SHARE)


def read(path: Path, missing: Any) -> Any:
    """The JSON value in a file; `missing` if there is none."""
    return json.loads(path.read_text()) if path.is_file() else missing


def middle(name: str, runs: list[float], form: str) -> str:
    """The name with the median; empty without runs."""
    return f"{name}{median(runs):{form}}" if runs else ""


def cells(goal: str, runs: list[float], form: str, others: str, limit: str, reached: bool) -> list[str]:
    """A line of the table."""
    if not runs:
        return [goal, "not measured", others, limit, ""]
    spread = f"{min(runs):{form}} to {max(runs):{form}}, {len(runs)}"
    return [goal, f"{middle('', runs, form)} ({spread})", others, limit, "reached" if reached else "MISSED"]


if __name__ == "__main__":
    main(sys.argv[1:])
