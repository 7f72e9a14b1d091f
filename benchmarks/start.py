"""How long commands take from their start to their end, where training itself takes next to nothing.

usage: python benchmarks/start.py [--other CHECKOUT] [--runs N] [--only TEXT ...]

Each checkout runs with the Python of its own environment (`make setup`). With another checkout, such as an older
one, each command is run in both, one after the other, and the last column has the ratios of these pairs. Prints a table
in Markdown: medians, with the minimum and the maximum in brackets. Memory is the largest of any process of a command.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ("torch", "mxnet", "tensorflow")
HOROVOD = "import horovod.torch as hvd; hvd.init(); hvd.rank()"
AS_ROOT = "--mpi-args=--allow-run-as-root" if os.geteuid() == 0 else ""
LIMIT_S = 300


class Measured(NamedTuple):
    """One run of a command."""

    seconds: float
    memory: float
    """Of its largest process, in MB."""


def commands() -> dict[str, list[str]]:
    """The rows of the table: a label, and the arguments of each command."""
    torch, *others = (f"python -m hvdtrain.{name}_lenet --max-steps 1" for name in FRAMEWORKS)
    lines = {f"import {name}": f"python -c 'import {name}'" for name in FRAMEWORKS}
    for name, train in zip(FRAMEWORKS, (torch, *others), strict=True):
        lines[f"{name}_lenet --strategy single"] = f"{train} --strategy single"
        lines[f"launch local -n 2: {name}_lenet"] = f"python -m hvdtrain launch local -n 2 -- {train}"
    lines |= {
        "torch_lenet --strategy single --compile": f"{torch} --strategy single --compile",
        "horovodrun -np 2: torch_lenet": f"horovodrun -np 2 {AS_ROOT} {torch}",
        "horovodrun -np 2 --gloo: torch_lenet": f"horovodrun -np 2 --gloo {torch}",
        "horovodrun -np 2 --mpi: torch_lenet": f"horovodrun -np 2 --mpi {AS_ROOT} {torch}",
        "launch horovodrun -n 2: torch_lenet": f"python -m hvdtrain launch horovodrun -n 2 -- {torch}",
        "horovodrun -np 2: Horovod alone": f"horovodrun -np 2 {AS_ROOT} python -c '{HOROVOD}'",
        "hvdtrain doctor": "python -m hvdtrain doctor",
        "hvdtrain runs": "python -m hvdtrain runs",
        "hvdtrain train --help": "python -m hvdtrain train --help",
    }
    return {label: shlex.split(line) for label, line in lines.items()}


def measure(command: list[str], checkout: Path) -> Measured:
    """Run a command in a new folder, with the environment of a checkout. Raises RuntimeError if it fails."""
    environment = {**os.environ, "PATH": f"{checkout / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        Path(folder, "runs").mkdir()  # for `hvdtrain runs`
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        _, status, usage = _wait(process.pid, began + LIMIT_S)
        seconds, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')[-2000:]}")
    return Measured(seconds, usage.ru_maxrss / 1024)


def _wait(pid: int, deadline: float) -> tuple[int, int, resource.struct_rusage]:
    """How a process ended, and what it and its children used."""
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return ended


def cell(values: list[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another checkout with its environment")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose label contains one of these")
    options = parser.parse_args()
    checkouts = [*([options.other.resolve()] if options.other else []), ROOT]
    header = ["command", *(f"{path.name}, s" for path in checkouts), *(f"{path.name}, MB" for path in checkouts)]
    header += ["ratio"] if options.other else []
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for label, command in commands().items():
        if not any(text in label for text in options.only):
            continue
        runs: dict[Path, list[Measured]] = {checkout: [] for checkout in checkouts}
        for number in range(options.runs + 1):
            for checkout in checkouts:
                measured = measure(command, checkout)
                if number:  # the first one fills caches
                    runs[checkout].append(measured)
        seconds = {checkout: [run.seconds for run in runs[checkout]] for checkout in checkouts}
        cells = [cell(seconds[checkout], ".2f") for checkout in checkouts]
        cells += [f"{median(run.memory for run in runs[checkout]):.0f}" for checkout in checkouts]
        if options.other:
            pairs = zip(seconds[ROOT], seconds[checkouts[0]], strict=True)
            cells.append(cell([new / old for new, old in pairs], ".2f"))
        print(f"| {' | '.join([label, *cells])} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
