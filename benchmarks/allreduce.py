"""Latency and bandwidth of an allreduce, over each library that a strategy uses.

usage: python benchmarks/allreduce.py [--libraries NAME...] [--np N] [--sizes BYTES...] [--repeats N] [--output FOLDER]

The bandwidths are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md there). Algorithm bandwidth is bytes / seconds. Bus
bandwidth is algorithm bandwidth * 2 (n - 1) / n, the least that each link must carry with n ranks, so that results for
different numbers of ranks can be compared.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hvdtrain.config.option import as_options, option
from hvdtrain.config.option_parser import read_arguments
from hvdtrain.doctor import subprocesses
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.measure.bench.strategies import JOB_TIMEOUT_S, beginning_with, environment, launched_here
from hvdtrain.system import stacks
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable, write_outputs
from hvdtrain.system.text import to_json
from hvdtrain.views.table import Column, Section, Table, text_column


class Library(NamedTuple):
    method: str
    """Its name in `allreduce_of_ranks.py`."""
    launcher: Callable[[int], list[str]]
    """The command line that starts that many ranks, without the program."""
    environment: dict[str, str] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)
    """Variables of its ranks."""


AS_SHIPPED = {"HOROVOD_EVENT_DRIVEN": "0", "HOROVOD_CYCLE_TIME": "1"}
"""Horovod with the background thread as published, and with its own default cycle in ms."""
LIBRARIES = {
    "horovod over MPI": Library("horovod-mpi", mpirun_here),
    "horovod over MPI, as shipped": Library("horovod-mpi", mpirun_here, AS_SHIPPED),
    "horovod over Gloo": Library("horovod-gloo", launched_here),
    "horovod over Gloo, as shipped": Library("horovod-gloo", launched_here, AS_SHIPPED),
    "gloo": Library("gloo", launched_here),
    "ring": Library("ring", launched_here),
    "mpi": Library("mpi", mpirun_here),
    "mpi by hand": Library("mpi-by-hand", mpirun_here),
}
"""The rows of the table, by name."""
SIZES = (8, 1 << 10, 1 << 14, 1 << 18, 1 << 19, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
WITH_TORCH = ("horovod-mpi", "horovod-gloo", "gloo")
"""Methods that PyTorch's tensors go through."""
Repeats = dict[str, list[dict[int, float]]]
"""Of each library, the seconds of an allreduce by number of bytes, in each of its jobs."""


@dataclass(frozen=True)
class AllreduceBenchOptions:
    """Measure an allreduce of float32 by Horovod, Gloo, MPI and hvdtrain's own ring."""

    libraries: tuple[str, ...] = option(())
    """Libraries to measure, by the names in the tables or their beginnings; default: all."""
    np: int = option(2, minimum=2)
    """Number of ranks."""
    sizes: tuple[int, ...] = option(SIZES)
    """Sizes of the allreduce, in bytes."""
    repeats: int = option(5, minimum=1)
    """How often each library is measured, each time in new processes."""
    output: Path = option(Path("runs/bench/allreduce"))
    """Folder for the results."""

    def __post_init__(self) -> None:
        as_options(self)
        _ = self.chosen
        if not self.sizes:
            raise UserError("--sizes: no size is given", "give some, such as 8 1048576")
        for size in self.sizes:
            if size < 4 or size % 4:
                raise UserError(f"--sizes {size}: float32 takes 4 bytes", "give multiples of 4")

    @property
    def chosen(self) -> list[str]:
        return beginning_with(self.libraries, [*LIBRARIES], "--libraries")


@exit_status()
def main(argv: list[str]) -> None:
    """Measure and print the table; ends the process with 1 if a job failed, 2 for invalid options."""
    print(run(read_arguments(AllreduceBenchOptions, "python benchmarks/allreduce.py", argv)))


def run(options: AllreduceBenchOptions) -> str:
    """Measure, and write `allreduce.md` and `allreduce.json`; returns the table for the terminal.

    Both files are written after each repeat, so that a benchmark that fails or is stopped keeps its whole repeats.
    Raises UserError if the folder of the results cannot be written or PyTorch is missing, TrainingError if a job fails.
    """
    require_writable(options.output, "--output")
    _require_torch(options.chosen)
    repeats: Repeats = {name: [] for name in options.chosen}
    for repeat in range(options.repeats):
        for name, measured in repeats.items():
            print(f"repeat {repeat + 1}/{options.repeats}: {name}", file=sys.stderr, flush=True)
            measured.append(measure(name, options))
        text = write(repeats, options)
    return text


def _require_torch(libraries: list[str]) -> None:
    measured = [name for name in libraries if LIBRARIES[name].method in WITH_TORCH]
    if measured and not importlib.util.find_spec("torch"):
        raise UserError(
            f"{measured[0]} is measured with PyTorch, which is not installed",
            f"give --libraries ring mpi, or run: {stacks.setup_command(stacks.stack_with('torch'))}",
        )


def write(repeats: Repeats, options: AllreduceBenchOptions) -> str:
    rows = [
        {"library": name, "bytes": size, "seconds": median(runs), "runs": runs}
        for size in dict.fromkeys(options.sizes)
        for name, jobs in repeats.items()
        for runs in [[seconds[size] for seconds in jobs]]
    ]
    table, record = _table(rows, options.np), to_json({"ranks": options.np, "hosts": 1, "rows": rows}) + "\n"
    write_outputs(options.output, "--output", {"allreduce.md": table.markdown(), "allreduce.json": record})
    return table.terminal()


def measure(name: str, options: AllreduceBenchOptions) -> dict[int, float]:
    """The seconds of one job of a library. Raises TrainingError if it fails."""
    library = LIBRARIES[name]
    program = [sys.executable, str(Path(__file__).with_name("allreduce_of_ranks.py")), library.method]
    command = [*library.launcher(options.np), *program, *map(str, options.sizes)]
    done = subprocesses.run(command, JOB_TIMEOUT_S, {**environment(), **library.environment})
    line = next((line for line in done.out.splitlines() if '{"' in line), None)
    if done.status == subprocesses.NO_PROGRAM:
        remedy = "install it, or name the libraries to measure with --libraries"
        raise TrainingError(f"the allreduce by {name}: {done.err}", remedy)
    if done.status != 0 or line is None:
        raise TrainingError(f"the allreduce by {name} failed: {done.reason()}")
    result = json.loads(line[line.index("{") : line.rindex("}") + 1])  # the launcher may put a label before it
    return {int(size): seconds for size, seconds in result.items()}


def _table(measured: list[dict[str, Any]], ranks: int) -> Table:
    columns = [
        *(Column("bytes"), text_column("library"), Column("time, us")),
        *(Column("minimum to maximum", priority=1), Column("algorithm bandwidth, GB/s", priority=3)),
        Column("bus bandwidth, GB/s", priority=2),
    ]
    rows = []
    for row in measured:
        times_us, gb_s = [seconds * 1e6 for seconds in row["runs"]], row["bytes"] / row["seconds"] / 1e9
        bus_gb_s, span = gb_s * 2 * (ranks - 1) / ranks, f"{min(times_us):,.1f} to {max(times_us):,.1f}"
        figures = f"{median(times_us):,.1f}", span, f"{gb_s:.3f}", f"{bus_gb_s:.3f}"
        rows.append([f"{row['bytes']:,}", row["library"], *figures])
    runs = len(measured[0]["runs"])
    caption = f"Allreduce of float32 over {ranks} processes on one machine; median of {runs} runs."
    return Table(columns, [Section(rows)], caption=caption)


if __name__ == "__main__":
    main(sys.argv[1:])
