"""python -m hvdtrain bench allreduce: latency and bandwidth of an allreduce, by each of the means of strategies.

The bandwidths are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md there): algorithm bandwidth = bytes / seconds, and
bus bandwidth = algorithm bandwidth * 2 (n - 1) / n, which for n ranks is what each link must carry at least, so that
numbers of ranks can be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tyro

from hvdtrain.errors import TrainingError, UserError
from hvdtrain.launch.launchers.mpirun import mpirun_here

LAUNCHERS = {
    "horovod": lambda np: ["horovodrun", "--gloo", "-np", str(np)],
    "gloo": lambda np: [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(np), "--"],
    "ring": lambda np: [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(np), "--"],
    "mpi": mpirun_here,
    "mpi by hand": mpirun_here,
}
# ours, theirs, the bytes at which they are compared
COMPARED = (("ring", "gloo"), ("mpi", "mpi by hand"))
COMPARED_BYTES = (1 << 20, 64 << 20)


@dataclass(frozen=True)
class Options:
    """Measure an allreduce of float32 by Horovod, Gloo, MPI and the ring of our own."""

    np: int = 2
    """Number of ranks."""
    sizes: tuple[int, ...] = (8, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
    """Bytes of an allreduce."""
    repeats: int = 3
    """Times that each means is measured, in a process of its own."""
    output: Path = Path("runs/bench/allreduce")
    """Folder of the results."""

    def __post_init__(self) -> None:
        for name, least in (("np", 2), ("repeats", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} {getattr(self, name)}: give {least} or more")
        for size in self.sizes:
            if size < 4 or size % 4:
                raise UserError(f"--sizes {size}: float32 takes 4 bytes; give multiples of 4")


def main(argv: list[str]) -> None:
    """Measure, print the tables as Markdown and write them to `allreduce.md`."""
    options = tyro.cli(Options, prog="python -m hvdtrain bench allreduce", args=argv)
    times: dict[str, list[dict[int, float]]] = {means: [] for means in LAUNCHERS}
    for repeat in range(options.repeats):
        for means, measured in times.items():
            print(f"repeat {repeat + 1}/{options.repeats}: {means}", file=sys.stderr, flush=True)
            measured.append(measure(means, options))
    text = "\n".join([*table(times, options), "", *comparison(times, options)])
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "allreduce.md").write_text(text + "\n")
    print(text)


def measure(means: str, options: Options) -> dict[int, float]:
    """Seconds of an allreduce for each size. Raises TrainingError where the job fails."""
    job = [*LAUNCHERS[means](options.np), sys.executable, "-m", "hvdtrain.frameworks.allreduce", means]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {"OMP_NUM_THREADS": "1", "HOROVOD_LOG_LEVEL": "error", **os.environ, "PATH": path}
    done = subprocess.run([*job, *map(str, options.sizes)], env=environment, text=True, capture_output=True)
    line = next((line for line in done.stdout.splitlines() if '{"' in line), None)
    if done.returncode or line is None:
        raise TrainingError(f"allreduce by {means} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return {int(size): seconds for size, seconds in json.loads(line[line.index("{") : line.index("}") + 1]).items()}


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s that each link carries."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def table(times: dict[str, list[dict[int, float]]], options: Options) -> list[str]:
    """Median time and bandwidths of each means at each size."""
    lines = [
        f"Allreduce of float32 over {options.np} processes of one machine; median of {options.repeats} runs.",
        "",
        "| bytes | means | time, us | algorithm bandwidth, GB/s | bus bandwidth, GB/s |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    for size in options.sizes:
        for means, measured in times.items():
            seconds = median(run[size] for run in measured)
            bus = bus_bandwidth(size, seconds, options.np)
            lines.append(f"| {size:,} | {means} | {seconds * 1e6:,.1f} | {size / seconds / 1e9:.3f} | {bus:.3f} |")
    return lines


def comparison(times: dict[str, list[dict[int, float]]], options: Options) -> list[str]:
    """Bus bandwidth of our own against that of the library, run by run."""
    lines = ["| bus bandwidth | bytes | ratio (least to greatest) |", "| --- | ---: | --- |"]
    for ours, theirs in COMPARED:
        for size in set(COMPARED_BYTES) & set(options.sizes):
            ratios = [b[size] / a[size] for a, b in zip(times[ours], times[theirs], strict=True)]
            lines.append(
                f"| {ours} / {theirs} | {size:,} | {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
            )
    return lines
