"""What --shards costs: images/s, compared with the same shards combined otherwise, and with training without shards.

usage: python benchmarks/shards.py [--frameworks NAME...] [--networks NAME...] [--libraries NAME...] [--ranks N...]
                                   [--shards N...] [--steps N] [--repeats N] [--busy]

As benchmarks/run.py: the recipe `book`, with LeNet or another network, global batch 256, ranks of Horovod over Gloo or
MPI with one thread each. Each ratio is one of two jobs of the same repeat, with minimum and maximum: of --shards and
the same shards combined by one float32 allreduce, by nothing, and training without shards. --busy: a program that
computes takes one core beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import run as loops

from hvdtrain.jobs.launchers import mpirun_here

OTHER_SUMS = str(Path(__file__).with_name("other_shard_sums.py"))
LAUNCHERS = {"gloo": loops.launched_here, "mpi": mpirun_here}


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    frameworks = ["torch", "mxnet", "tensorflow"]
    parser.add_argument("--frameworks", nargs="+", choices=frameworks, default=frameworks, help="default: all")
    parser.add_argument("--networks", nargs="+", default=["lenet"], help="default: lenet")
    parser.add_argument("--libraries", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS), help="default: all")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="default: 2")
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 4, 8], help="default: 2 4 8")
    parser.add_argument("--steps", type=int, default=200, help="steps of a job, at least 60; default: 200")
    parser.add_argument("--repeats", type=int, default=5, help="default: 5")
    parser.add_argument("--busy", action="store_true", help="let another program take one core")
    options = parser.parse_args()
    data = loops.default_dataset()
    print("| framework | network | library | ranks | shards | images/s | / one allreduce | / no sums | / no shards |")
    print("| --- | --- | --- | ---: | ---: | ---: | --- | --- | --- |", flush=True)
    jobs = itertools.product(options.frameworks, options.networks, options.libraries, options.ranks, options.shards)
    with busy_core() if options.busy else contextlib.nullcontext():
        for job in jobs:
            runs = [measure(*job, data, options.steps) for _ in range(options.repeats)]
            speeds, *others = map(list, zip(*runs, strict=True))
            cells = [*map(str, job), f"{median(speeds):,.0f}", *(ratio(speeds, other) for other in others)]
            print(f"| {' | '.join(cells)} |", flush=True)


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """A process that computes, until the end of the block."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def measure(framework: str, network: str, library: str, ranks: int, shards: int, data: str, steps: int) -> list[float]:
    """images/s in shards, in shards combined by one allreduce and by nothing, and without shards."""
    program, in_shards = ["-m", f"hvdtrain.{framework}_lenet"], ["--shards", str(shards)]
    others = [[OTHER_SUMS, way, framework, *in_shards] for way in ("allreduce", "none")]
    start = [*LAUNCHERS[library](ranks), sys.executable]
    jobs = [[*start, *job, "--model", network] for job in ([*program, *in_shards], *others, program)]
    return [loops.train(job, data, steps)["images_per_s"] for job in jobs]


def ratio(ones: list[float], others: list[float]) -> str:
    """The ratios of jobs of the same repeats."""
    return loops.spread([one / other for one, other in zip(ones, others, strict=True)], ".3f")


if __name__ == "__main__":
    main()
