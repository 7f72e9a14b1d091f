"""What sums of gradients cost whose bits do not depend on the number of ranks: bytes, time and error of several ways.

usage: python benchmarks/shard_sums.py [--ranks N...] [--networks NAME...] [--output FILE]

The gradients of 8 shards, for LeNet, ResNet-20 and 25 million parameters, are summed by Horovod's ranks over Gloo and
over MPI; each rank has its shards' gradients as float32 arrays in memory. The ways:

- float32: the sum of the rank's shards, and an allreduce of it, as without --shards. Its bits depend on the ranks.
- tree: float32 sums by a binary tree over the shards (`hvdtrain.collectives.tree_sum`), which --shards uses: an
  exchange of the sums of the ranks' subtrees, each rank adds its part of the elements, and an exchange of the results.
- tree64: the same in float64.
- grid: an exact sum. The largest magnitudes, and an allreduce of float64 multiples of a grid that all elements of an
  array share.
- gather: an allgather of all shards, which each rank adds in their order, in float64.
- integers: the largest magnitudes, and an allreduce of 64-bit fixed-point numbers.

Bytes are the most that a rank sends for a parameter, by the algorithms that need the fewest (a ring). The error is the
largest of some thousand elements against `math.fsum`, in units of one rounding to float32 (half a unit in the last
place); 1.00 is the least that is possible. The hash shows whether the bits are the same with all numbers of ranks and
libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hvdtrain.collectives.horovod import HorovodGroup
from hvdtrain.collectives.tree_sum import TreeSum
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.frameworks.preparation import keep_freed_memory
from hvdtrain.interfaces.combining import type_of
from hvdtrain.interfaces.strategy import Group
from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.measure.bench.strategies import environment, launched_here
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import record

SHARDS, CHUNK = 8, 1 << 15
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "LeNet": [shape for _, shape in NETWORKS["cifar_lenet"].for_data((3, 32, 32), 10, "cifar_lenet").parameters()],
    "ResNet-20": [shape for _, shape in NETWORKS["resnet20"].for_data((3, 32, 32), 10, "resnet20").parameters()],
    "25 million": [(1000, 1000)] * 25,
}
"""Shapes of the gradients, by network."""
CHECKED = 4000
"""Elements whose error is measured."""
MEASURED_ELEMENTS, MIN_REPEATS, MAX_REPEATS = 1 << 24, 3, 40
"""Elements that a measurement adds in total, about, and limits of its repeats."""
LAUNCHERS = {"Gloo": launched_here, "MPI": mpirun_here}
JOB_TIMEOUT_S = 300

Shards = list[list[np.ndarray]]
"""The gradients of each shard of a rank, float32."""


class Messages(Group):
    """Horovod's collectives on NumPy arrays, with the bytes that this rank sends and the seconds that they take."""

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        self._hvd, self._torch = hvd, torch
        self.group = HorovodGroup(hvd, torch.from_numpy, lambda tensor: tensor.numpy())
        self.rank, self.size = self.group.rank, self.group.size
        self.bytes, self.seconds = 0.0, 0.0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over all ranks of a float64 vector."""
        return self._timed(2 * values.nbytes / self.size, lambda: self.group.sum(values))

    def allreduce(self, values: np.ndarray) -> np.ndarray:
        """The sum over all ranks of a vector of any type."""
        name = f"allreduce.{values.dtype}.{len(values)}"
        add = lambda tensor: self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)  # noqa: E731
        return self._timed(2 * values.nbytes / self.size, lambda: add(self._torch.from_numpy(values)).numpy())

    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        """See `Group.exchange`."""
        sent = vector.itemsize * (sum(counts) - counts[self.rank]) / (self.size - 1)
        return self._timed(sent, lambda: self.group.exchange(name, vector, counts, lengths))

    def allgather(self, values: np.ndarray) -> np.ndarray:
        """The values of all ranks, one after the other."""
        name = f"allgather.{values.dtype}.{values.ndim}"  # lengths may differ between ranks
        gather = lambda tensor: self._hvd.allgather(tensor, name=name)  # noqa: E731
        return self._timed(values.nbytes, lambda: gather(self._torch.from_numpy(values)).numpy())

    def _timed(self, sent_to_each: float, exchange: Callable[[], Any]) -> Any:
        """The result of an exchange, in which this rank sends so many bytes for each of the others."""
        began = time.perf_counter()
        result = exchange()
        self.seconds += time.perf_counter() - began
        self.bytes += sent_to_each * (self.size - 1)
        return result


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def by_float32(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards, float32, as without --shards."""
    total = flat(shards[0])
    for arrays in shards[1:]:
        total += flat(arrays)
    return messages.allreduce(total)


def by_tree(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards, float32, as with --shards."""
    return flat(tree_sums(messages, shards, "float32"))


def by_tree64(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards, rounded once to float32."""
    return flat(tree_sums(messages, shards, "float64")).astype(np.float32)


def tree_sums(messages: Messages, shards: Shards, kind: str) -> list[np.ndarray]:
    """Those of all arrays, by a binary tree over the shards, in this type."""
    by_rank = Assignment.contiguous(messages.size, SHARDS).by_rank
    sums = TreeSum(messages, by_rank, tuple(type_of(kind, array.shape) for array in shards[0]), 1)
    for shard, arrays in zip(by_rank[messages.rank], shards, strict=True):
        sums.add(shard, arrays)
    sums.exchange(np.zeros(1))
    return sums.total()


def by_grid(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards, float32, of values rounded to a grid: exact in float64, in any order.

    (x + M) - M with M = 1.5 * 2^e rounds x to a multiple of 2^(e - 52) as long as |x| <= 2^(e - 1). Sums of such
    multiples are exact while they stay below 2^(e + 1).
    """
    bounds = exponents(messages, shards) + max(1, math.ceil(math.log2(SHARDS)) - 1)
    totals = []
    for arrays, bound in zip(zip(*shards, strict=True), bounds, strict=True):
        total, rounded = np.zeros(arrays[0].size), np.empty(min(arrays[0].size, CHUNK))
        for begin in range(0, total.size, CHUNK):
            chunk = total[begin : begin + CHUNK]
            for array in arrays:
                values = rounded[: chunk.size]
                np.add(array.reshape(-1)[begin : begin + CHUNK], np.ldexp(1.5, bound), values, dtype=np.float64)
                values -= np.ldexp(1.5, bound)
                chunk += values
        totals.append(total)
    return messages.sum(np.concatenate(totals)).astype(np.float32)


def exponents(messages: Messages, shards: Shards) -> np.ndarray:
    """By array the smallest x with all elements of all shards below 2^x."""
    largest = np.zeros((messages.size, len(shards[0])))
    largest[messages.rank] = [np.abs(flat(arrays)).max() for arrays in zip(*shards, strict=True)]
    return np.frexp(messages.sum(largest.ravel()).reshape(largest.shape).max(0))[1]


def by_gather(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards, float32, in their order on each rank."""
    gathered = messages.allgather(np.stack([flat(arrays) for arrays in shards]))
    total = gathered[0].astype(np.float64)
    for values in gathered[1:]:
        total += values
    return total.astype(np.float32)


def by_integers(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards, float32, as 64-bit fixed-point numbers."""
    digits = 62 - math.ceil(math.log2(SHARDS)) - exponents(messages, shards)  # after the binary point
    places = np.repeat(digits, [array.size for array in shards[0]])
    total = np.zeros(len(places), np.int64)
    for arrays in shards:
        total += np.rint(np.ldexp(flat(arrays).astype(np.float64), places)).astype(np.int64)
    return np.ldexp(messages.allreduce(total).astype(np.float64), -places).astype(np.float32)


WAYS = {
    "float32": by_float32,
    "tree": by_tree,
    "tree64": by_tree64,
    "grid": by_grid,
    "gather": by_gather,
    "integers": by_integers,
}


def make_shards(shapes: list[tuple[int, ...]], rank: int, size: int) -> Shards:
    """Gradients of this rank's shards, whose elements and arrays differ by orders of magnitude."""
    shards = []
    for shard in range(SHARDS * rank // size, SHARDS * (rank + 1) // size):
        generator = np.random.default_rng(shard)
        arrays = [generator.standard_normal(shape, np.float32) for shape in shapes]
        shards.append(
            [(array * array * array * 10.0 ** -(number % 4)).astype(np.float32) for number, array in enumerate(arrays)]
        )
    return shards


def measure_ranks(networks: list[str], output: Path) -> None:
    """On each rank of a job: measure all ways; rank 0 writes the figures by network and way."""
    keep_freed_memory()  # as training does
    messages = Messages()
    figures: dict[str, dict[str, Any]] = {}
    for network in networks:
        shards = make_shards(SHAPES[network], messages.rank, messages.size)
        exact = exact_sums(messages, shards)
        figures[network] = {name: measure(messages, shards, way, exact) for name, way in WAYS.items()}
    if messages.rank == 0:
        output.write_text(json.dumps(figures))
    messages.group.close()


def exact_sums(messages: Messages, shards: Shards) -> np.ndarray:
    """The sums over all shards of CHECKED elements, float64."""
    count = sum(array.size for array in shards[0])
    places = np.linspace(0, count - 1, CHECKED).astype(np.int64)
    gathered = messages.group.gather([flat(arrays)[places] for arrays in shards])
    rows = [values for of_rank in gathered for values in of_rank]
    return np.array([math.fsum(column) for column in zip(*rows, strict=True)])


def measure(
    messages: Messages, shards: Shards, way: Callable[[Messages, Shards], np.ndarray], exact: np.ndarray
) -> dict[str, Any]:
    """What a way of summing costs: time on this rank, the most bytes that a rank sends, largest error; and its bits."""
    total = way(messages, shards)  # fills caches
    checked = total[np.linspace(0, len(total) - 1, CHECKED).astype(np.int64)].astype(np.float64)
    rounding = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2
    seconds, in_messages = [], []
    for _ in range(int(np.clip(MEASURED_ELEMENTS // len(total), MIN_REPEATS, MAX_REPEATS))):
        messages.group.sum(np.zeros(1))
        messages.bytes, messages.seconds, began = 0.0, 0.0, time.perf_counter()
        way(messages, shards)
        seconds.append(time.perf_counter() - began)
        in_messages.append(messages.seconds)
    return {
        "ms": 1e3 * median(seconds),
        "messages_ms": 1e3 * median(in_messages),
        "bytes": max(messages.group.gather(messages.bytes)) / len(total),
        "error": float((np.abs(checked - exact) / rounding).max()),
        "hash": hashlib.sha256(total).hexdigest()[:16],
    }


def main() -> None:
    """Run one job for each library and number of ranks, and print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, choices=range(2, 9), default=[2, 3, 4], help="default: 2 3 4")
    parser.add_argument("--networks", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--output", type=Path, default=Path("runs/shard-sums.md"), help="file for the tables")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure_ranks(options.networks, options.measure)
        return
    if not importlib.util.find_spec("torch"):
        sys.exit("needs PyTorch")
    jobs = {}
    for library in LAUNCHERS:
        for ranks in options.ranks:
            print(f"{library}, {ranks} ranks", file=sys.stderr, flush=True)
            jobs[f"{library}, {ranks} ranks"] = run_job(library, ranks, options.networks)
    host = record.host()
    text = "\n\n".join(
        [f"{host['processor']}, {host['cores']} cores", *(table(name, jobs) for name in options.networks)]
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text + "\n")
    print(text)


def run_job(library: str, ranks: int, networks: list[str]) -> dict[str, Any]:
    """The figures of a job by network and way; ends this program if the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "figures.json")
        program = [sys.executable, __file__, "--measure", str(output), "--networks", *networks]
        command = [*LAUNCHERS[library](ranks), *program]
        job = subprocess.run(command, env=environment(), text=True, capture_output=True, timeout=JOB_TIMEOUT_S)
        if job.returncode:
            sys.exit(f"{library}, {ranks} ranks: status {job.returncode}:\n{job.stdout[-2000:]}{job.stderr[-2000:]}")
        return dict(json.loads(output.read_text()))


def table(network: str, jobs: dict[str, dict[str, Any]]) -> str:
    """The ways of a network: milliseconds by job, of which in messages, and what all jobs have in common."""
    count = sum(math.prod(shape) for shape in SHAPES[network])
    bytes_of = {title.rpartition(", ")[2]: title for title in jobs}
    headings = [f"{title}: ms (in messages)" for title in jobs] + [f"bytes, {ranks}" for ranks in bytes_of]
    lines = [
        f"{network}, {count:,} parameters",
        "",
        f"| way | {' | '.join(headings)} | error | bits |",
        f"| --- | {' | '.join(['---:'] * (len(headings) + 1))} | --- |",
    ]
    for way in WAYS:
        figures = {title: of_job[network][way] for title, of_job in jobs.items()}
        cells = [f"{one['ms']:,.2f} ({one['messages_ms']:,.2f})" for one in figures.values()]
        cells += [f"{figures[title]['bytes']:.1f}" for title in bytes_of.values()]
        hashes = {one["hash"] for one in figures.values()}
        bits = "the same in all" if len(hashes) == 1 else f"{len(hashes)} different"
        lines.append(f"| {way} | {' | '.join(cells)} | {max(one['error'] for one in figures.values()):.2f} | {bits} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
