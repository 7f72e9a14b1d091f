"""What --shards costs: images/s, compared with the same shards without sums, and with training without shards.

usage: python benchmarks/shards.py [--frameworks NAME...] [--shards N...] [--steps N] [--repeats N]

As benchmarks/run.py: LeNet of the recipe `book`, global batch 256, two ranks of Horovod over Gloo with one thread each.
Each ratio is one of two jobs of the same repeat. Goal: 0.97 of the same shards without sums.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import run as loops

WITHOUT_SUMS = str(Path(__file__).with_name("shards_without_sums.py"))


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    frameworks = ["torch", "mxnet", "tensorflow"]
    parser.add_argument("--frameworks", nargs="+", choices=frameworks, default=frameworks, help="default: all")
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 4, 8], help="default: 2 4 8")
    parser.add_argument("--steps", type=int, default=200, help="steps of a job, at least 60; default: 200")
    parser.add_argument("--repeats", type=int, default=3, help="default: 3")
    options = parser.parse_args()
    data = loops.default_dataset()
    print("| framework | shards | images/s | / without sums | / without shards |")
    print("| --- | ---: | ---: | --- | --- |", flush=True)
    for framework in options.frameworks:
        for shards in options.shards:
            runs = [measure(framework, shards, data, options.steps) for _ in range(options.repeats)]
            speeds, *others = map(list, zip(*runs, strict=True))
            cells = [f"{median(speeds):,.0f}", *(ratio(speeds, other) for other in others)]
            print(f"| {framework} | {shards} | {' | '.join(cells)} |", flush=True)


def measure(framework: str, shards: int, data: str, steps: int) -> list[float]:
    """images/s in shards, in shards without sums, and without shards."""
    program, in_shards = ["-m", f"hvdtrain.{framework}_lenet"], ["--shards", str(shards)]
    jobs = [[*program, *in_shards], [WITHOUT_SUMS, framework, *in_shards], program]
    return [loops.train([*loops.launched_here(2), sys.executable, *job], data, steps)["images_per_s"] for job in jobs]


def ratio(ones: list[float], others: list[float]) -> str:
    """The ratios of jobs of the same repeats."""
    return loops.spread([one / other for one, other in zip(ones, others, strict=True)], ".2f")


if __name__ == "__main__":
    main()
