"""Latency and bandwidth of an allreduce, over each library that a strategy uses.

The bandwidths are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md there): algorithm bandwidth = bytes / seconds, and
bus bandwidth = algorithm bandwidth * 2 (n - 1) / n, the least that each link must carry with n ranks, so that results
for different numbers of ranks can be compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hvdtrain.bench.strategies import environment
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.launch.launchers.mpirun import mpirun_here
from hvdtrain.scale.allreduce_table import write_table
from hvdtrain.system.files import require_writable, write_atomically

LAUNCHERS = {
    "horovod": lambda np: ["horovodrun", "--gloo", "-np", str(np)],
    "gloo": lambda np: [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(np), "--"],
    "ring": lambda np: [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(np), "--"],
    "mpi": mpirun_here,
    "mpi by hand": mpirun_here,
}
"""What performs the allreduce (see `hvdtrain.frameworks.allreduce_benchmark`), and the launcher of its job."""
COMPARED = (("ring", "gloo"), ("mpi", "mpi by hand"))
"""hvdtrain's own, and what it is compared with."""
COMPARED_BYTES = (1 << 20, 64 << 20)
Times = dict[str, list[dict[int, float]]]
"""For each library, a list of repeats: seconds by number of bytes."""


@dataclass(frozen=True)
class AllreduceBenchOptions:
    """Measure an allreduce of float32 by Horovod, Gloo, MPI and hvdtrain's own ring."""

    np: int = 2
    """Number of ranks."""
    sizes: tuple[int, ...] = (8, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
    """Sizes of the allreduce, in bytes."""
    repeats: int = 3
    """How often each library is measured, each time in new processes."""
    output: Path = Path("runs/bench/allreduce")
    """Folder for the results."""

    def __post_init__(self) -> None:
        for name, minimum in (("np", 2), ("repeats", 1)):
            if getattr(self, name) < minimum:
                raise UserError(f"--{name} {getattr(self, name)} is too small", f"give {minimum} or more")
        for size in self.sizes:
            if size < 4 or size % 4:
                raise UserError(f"--sizes {size}: float32 takes 4 bytes", "give multiples of 4")


def run(options: AllreduceBenchOptions) -> str:
    """Measure; returns the tables in Markdown, which are also written to `allreduce.md`, and to `allreduce.json`.

    Raises UserError if the folder of the results cannot be written, TrainingError if a job fails.
    """
    require_writable(options.output, "--output")
    times: Times = {library: [] for library in LAUNCHERS}
    for repeat in range(options.repeats):
        for library, measured in times.items():
            print(f"repeat {repeat + 1}/{options.repeats}: {library}", file=sys.stderr, flush=True)
            measured.append(measure(library, options))
    text = "\n".join([*table(times, options), "", *comparison(times, options)])
    write_atomically(options.output / "allreduce.md", text + "\n")
    write_table(options.output / "allreduce.json", options.np, 1, times)
    return text


def measure(library: str, options: AllreduceBenchOptions) -> dict[int, float]:
    """Seconds of an allreduce for each size. Raises TrainingError if the job fails."""
    command = [
        *LAUNCHERS[library](options.np),
        sys.executable,
        "-m",
        "hvdtrain.frameworks.allreduce_benchmark",
        library,
    ]
    done = subprocess.run([*command, *map(str, options.sizes)], env=environment(), text=True, capture_output=True)
    line = next((line for line in done.stdout.splitlines() if '{"' in line), None)
    if done.returncode or line is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise TrainingError(f"the allreduce by {library} failed: {last}")
    result = json.loads(line[line.index("{") : line.index("}") + 1])  # the launcher may put a label before it
    return {int(size): seconds for size, seconds in result.items()}


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s that each link carries (nccl-tests)."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def table(times: Times, options: AllreduceBenchOptions) -> list[str]:
    """Median time and bandwidths of each library at each size, as lines of Markdown."""
    lines = [
        f"Allreduce of float32 over {options.np} processes on one machine; median of {options.repeats} runs.",
        "",
        "| bytes | library | time, us | algorithm bandwidth, GB/s | bus bandwidth, GB/s |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    for size in options.sizes:
        for library, measured in times.items():
            seconds = median(run[size] for run in measured)
            bus = bus_bandwidth(size, seconds, options.np)
            lines.append(f"| {size:,} | {library} | {seconds * 1e6:,.1f} | {size / seconds / 1e9:.3f} | {bus:.3f} |")
    return lines


def comparison(times: Times, options: AllreduceBenchOptions) -> list[str]:
    """Ratios of hvdtrain's bus bandwidth to the library's, run by run, as lines of Markdown."""
    lines = ["| bus bandwidth | bytes | ratio (minimum to maximum) |", "| --- | ---: | --- |"]
    for ours, theirs in COMPARED:
        for size in set(COMPARED_BYTES) & set(options.sizes):
            ratios = [b[size] / a[size] for a, b in zip(times[ours], times[theirs], strict=True)]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"| {ours} / {theirs} | {size:,} | {spread} |")
    return lines
