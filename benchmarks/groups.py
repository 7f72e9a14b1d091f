"""What the number of messages costs (--groups): steps on synthetic rows, for a small network and one of 100 MB.

usage: horovodrun -np 2 python benchmarks/groups.py FRAMEWORK lenet|dense [--groups 1 4 16 auto] [--rows N]

All settings train in the same processes, in blocks that alternate, so that drift of the machine's speed affects all
equally. Rank 0 prints medians over blocks: milliseconds and CPU milliseconds (of rank 0, all threads) of a step.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time

import numpy as np

from hvdtrain.collectives.horovod import gradient_groups
from hvdtrain.config.options import Config, RuntimeOptions, from_recipe
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.layers import CLASSES, Dense, Flatten, Relu
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.views.table import spread

IMAGE, LABELS = (1, 28, 28), 10
"""Shape of the images, and number of classes."""
DENSE = Network((Flatten(), *(Dense(1024), Relu()) * 25, Dense(CLASSES)))
"""26 million parameters in 52 gradients: 104 MB."""
BLOCK_S = 2.0
"""Seconds of a block, about."""


def main() -> None:
    """Measure, and print the table on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=("torch", "mxnet", "tensorflow"))
    parser.add_argument("network", choices=("lenet", "dense"))
    parser.add_argument("--groups", nargs="+", default=["1", "4", "16", "auto"])
    parser.add_argument("--rows", type=int, default=128, help="rows of a step on each rank; default: 128")
    parser.add_argument("--blocks", type=int, default=7, help="blocks of each setting; default: 7")
    options = parser.parse_args()
    chosen = DENSE if options.network == "dense" else NETWORKS["lenet"]
    network = chosen.for_data(IMAGE, LABELS, options.network)
    base = from_recipe("book", framework=options.framework, batch_size=options.rows, batch_scope="per-rank")
    configs = {name: dataclasses.replace(base, groups=name if name == "auto" else int(name)) for name in options.groups}
    weights = initial_weights(network, "xavier", 0)
    learners = {}
    for name, config in configs.items():
        learners[name] = build_learner(config, NetworkTarget(network), weights, RuntimeOptions(device="cpu"))
        learners[name].weights()  # waits for MXNet's broadcast, as the next learner's has the same names
    blocks = measure(learners, options.rows, options.blocks)
    group = next(iter(learners.values())).group
    if group.rank == 0:
        print(f"{options.framework}, {options.network}, {group.size} ranks, {options.rows} rows on each", flush=True)
        print(table(configs, blocks, network, group.size), flush=True)
    group.close()


def measure(learners: dict[str, Learner], rows: int, count: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds of a step, of `count` blocks of each learner."""
    generator = np.random.default_rng(0)
    arrays = generator.integers(0, 256, (rows, *IMAGE), np.uint8), generator.integers(0, LABELS, rows)
    batch = Batch(arrays, np.full(rows, 1 / rows, np.float32), 0.01, 0, np.arange(rows))
    group = next(iter(learners.values())).group
    for learner in learners.values():  # compiles, and fills Horovod's cache of responses
        run_block(learner, batch, 5)
    warm = max(group.gather(max(run_block(learner, batch, 3)[0] for learner in learners.values())))
    steps = max(math.ceil(BLOCK_S / warm), 3)
    blocks: dict[str, list[tuple[float, float]]] = {name: [] for name in learners}
    for _ in range(count):
        for name, learner in learners.items():
            group.sum(np.zeros(1))
            blocks[name].append(run_block(learner, batch, steps))
    return blocks


def run_block(learner: Learner, batch: Batch, steps: int) -> tuple:
    """Seconds and CPU seconds of a step, on average over `steps`."""
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        learner.train_step(batch)
    learner.weights()  # waits for the last update
    return (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps


def table(
    configs: dict[str, Config], blocks: dict[str, list[tuple[float, float]]], network: ShapedNetwork, ranks: int
) -> str:
    """One line for each setting, in Markdown."""
    sizes = {name: math.prod(shape) for name, shape in network.parameters()}
    lines = ["| --groups | messages | ms a step (range) | CPU ms a step (range) |", "| --- | --- | --- | --- |"]
    for name, config in configs.items():
        columns = [spread([value * 1e3 for value in values], ".2f") for values in zip(*blocks[name], strict=True)]
        lines.append(f"| {name} | {len(gradient_groups(config, sizes, ranks))} | {' | '.join(columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
