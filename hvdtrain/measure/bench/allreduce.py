"""Latency and bandwidth of an allreduce, over each library that a strategy uses, and what Horovod costs while idle."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hvdtrain.config.option import option
from hvdtrain.config.validity import check_ranges
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.jobs.launchers.mpirun import mpirun_here
from hvdtrain.measure.bench import allreduce_tables
from hvdtrain.measure.bench.allreduce_tables import Measured, Repeats, has_own_thread
from hvdtrain.measure.bench.core_to_core import round_trip_s
from hvdtrain.measure.bench.strategies import AS_SHIPPED, environment, launched_here
from hvdtrain.measure.scale.allreduce_table import to_table
from hvdtrain.system import stacks
from hvdtrain.system.files import require_writable, write_atomically
from hvdtrain.system.text import to_json


class Library(NamedTuple):
    """What performs the allreduce."""

    method: str
    """Its name in `hvdtrain.frameworks.allreduce_benchmark`."""
    launcher: Callable[[int], list[str]]
    """The command line that starts that many ranks, without the program."""
    environment: dict[str, str] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)
    """Variables of its ranks."""


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
"""The rows of each table, by name."""
SIZES = (8, 1 << 10, 1 << 14, 1 << 18, 1 << 19, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
WITH_TORCH = ("horovod-mpi", "horovod-gloo", "gloo")
"""Methods that PyTorch's tensors go through."""


@dataclass(frozen=True)
class AllreduceBenchOptions:
    """Measure an allreduce of float32 by Horovod, Gloo, MPI and hvdtrain's own ring, and Horovod's idle cost."""

    libraries: tuple[str, ...] = option(())
    """Libraries to measure, by the names in the tables or their beginnings; default: all."""
    np: int = option(2, minimum=2)
    """Number of ranks."""
    sizes: tuple[int, ...] = option(SIZES)
    """Sizes of the allreduce, in bytes."""
    idle_seconds: float = option(5.0, minimum=0)
    """Seconds for which ranks that have started Horovod do nothing, to measure what that costs; 0 to leave it out."""
    repeats: int = option(5, minimum=1)
    """How often each library is measured, each time in new processes."""
    output: Path = option(Path("runs/bench/allreduce"))
    """Folder for the results."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for prefix in self.libraries:
            if not any(name.startswith(prefix) for name in LIBRARIES):
                raise UserError(f"--libraries {prefix!r}: no such library", f"choose from {', '.join(LIBRARIES)}")
        for size in self.sizes:
            if size < 4 or size % 4:
                raise UserError(f"--sizes {size}: float32 takes 4 bytes", "give multiples of 4")

    @property
    def chosen(self) -> list[str]:
        """Names of the libraries to measure."""
        return [name for name in LIBRARIES if name.startswith(self.libraries or ("",))]


def run(options: AllreduceBenchOptions) -> str:
    """Measure, and write `allreduce.md` and `allreduce.json`; returns the tables for the terminal.

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
    """Write what is measured; returns the tables for the terminal."""
    found = allreduce_tables.tables(repeats, options.np, options.sizes, options.idle_seconds > 0)
    write_atomically(options.output / "allreduce.md", "\n".join(one.markdown() for one in found))
    write_atomically(options.output / "allreduce.json", to_json(record(repeats, options)) + "\n")
    return "\n\n".join(one.terminal() for one in found)


def measure(name: str, options: AllreduceBenchOptions) -> Measured:
    """One job of a library. Raises TrainingError if it fails."""
    library = LIBRARIES[name]
    idle_s = options.idle_seconds if has_own_thread(name) else 0.0
    program = [sys.executable, "-m", "hvdtrain.frameworks.allreduce_benchmark", library.method, str(idle_s)]
    command = [*library.launcher(options.np), *program, *map(str, options.sizes)]
    before = round_trip_s()
    try:
        done = subprocess.run(command, env={**environment(), **library.environment}, text=True, capture_output=True)
    except OSError as error:
        remedy = "install it, or name the libraries to measure with --libraries"
        raise TrainingError(
            f"the allreduce by {name}: {command[0]} does not start ({error.strerror})", remedy
        ) from None
    line = next((line for line in done.stdout.splitlines() if '{"' in line), None)
    if done.returncode or line is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise TrainingError(f"the allreduce by {name} failed: {last}")
    result = json.loads(line[line.index("{") : line.rindex("}") + 1])  # the launcher may put a label before it
    seconds = {int(size): seconds for size, seconds in result["seconds"].items()}
    return Measured(seconds, result["idle"], [one for one in (before, round_trip_s()) if one is not None])


def record(repeats: Repeats, options: AllreduceBenchOptions) -> dict[str, object]:
    """The content of `allreduce.json`: a table for `scale`, and by library each repeat's results other than times.

    `idle`: shares of a core, by rank. `cores`: seconds of `round_trip_s` before and after the job.
    """
    seconds = {name: [job.seconds for job in jobs] for name, jobs in repeats.items()}
    idle = [
        {"library": name, "runs": [job.idle for job in jobs]}
        for name, jobs in repeats.items()
        if options.idle_seconds and has_own_thread(name)
    ]
    cores = [{"library": name, "runs": [job.core_round_trips for job in jobs]} for name, jobs in repeats.items()]
    return {**to_table(options.np, 1, seconds), "idle": idle, "cores": cores}
