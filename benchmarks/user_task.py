"""A part of make bench: a task of the user's own compared with the same training by hand in PyTorch.

usage: python benchmarks/user_task.py [--steps N] [--repeats N] [--output FILE]

The network of fashion_task.py, Fashion-MNIST (synthetic images if HVDTRAIN_DATA does not have it), 64 images a rank,
two ranks of one thread each, gradients combined by DistributedDataParallel over Gloo in all jobs. By hand means
DistributedSampler and DataLoader (bare_user_task.py) in several variants: rows that are collated, by 0, 1 and 2
workers; whole batches; and whole batches with glibc's memory set as hvdtrain sets it. The fastest is compared with
the goal. Jobs of a repeat follow each other, as in run.py; after the first repeat only the two fastest continue.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from run import HERE, TORCHRUN, Runs, reported, start, verdict

from hvdtrain.measure.bench.strategies import default_dataset, launched_here
from hvdtrain.views.table import spread

KEEP_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "536870912",
}
"""The variables for what `hvdtrain.frameworks.preparation.keep_freed_memory` does."""
OURS = "hvdtrain train fashion_task.py:Task --strategy ddp"
# The variants of bare_user_task.py: its last two arguments, and variables.
BY_HAND: dict[str, tuple[str, str, dict[str, str]]] = {
    "by hand, DataLoader": ("rows", "0", {}),
    "by hand, DataLoader, 1 worker": ("rows", "1", {}),
    "by hand, DataLoader, 2 workers": ("rows", "2", {}),
    "by hand, DataLoader of whole batches": ("batches", "0", {}),
    "by hand, DataLoader of whole batches, freed memory kept": ("batches", "0", KEEP_FREED_MEMORY),
}
OPTIONS = (
    *("--batch-scope", "per-rank", "--batch-size", "64", "--lr", "0.01", "--momentum", "0.9"),
    *("--schedule", "constant", "--warmup-epochs", "0", "--log-every", "20"),
)
LEAST = 0.97
"""Of the fastest variant by hand: the goal for hvdtrain's images/s."""


def main() -> None:
    """Run all jobs, append their results to the output file, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=140, help="steps of a job, at least 60; default: 140")
    parser.add_argument("--repeats", type=int, default=5, help="how often each job runs; default: 5")
    parser.add_argument("--output", type=Path, default=Path("runs/own-task.jsonl"), help="file to append results to")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Runs] = {name: [] for name in [OURS, *BY_HAND]}
    for repeat in range(options.repeats):
        for name in results if repeat == 0 else [OURS, *fastest(results, 2)]:
            print(f"repeat {repeat + 1}/{options.repeats}: {name}", file=sys.stderr, flush=True)
            done = results[name]
            done.append(measure(name, options.steps))
            with open(options.output, "a") as file:
                file.write(json.dumps({"row": name, "repeat": repeat, **done[-1]}) + "\n")
    print(table(results))


def measure(name: str, steps: int) -> dict[str, float]:
    """Run one job; its images/s, and the peak memory of a rank in MB."""
    data = default_dataset()
    if name in BY_HAND:
        kind, workers, variables = BY_HAND[name]
        return reported(start([*TORCHRUN, str(HERE / "bare_user_task.py"), data, str(steps), kind, workers], variables))
    with tempfile.TemporaryDirectory() as folder:
        task = [f"{HERE / 'fashion_task.py'}:Task", "--arg", f"name={data}", "--strategy", "ddp", *OPTIONS]
        place = ["--runs", folder, "--name", "job", "--max-steps", str(steps), "--quiet"]
        start([*launched_here(2), sys.executable, "-m", "hvdtrain", "train", *task, *place])
        result = json.loads(Path(folder, "job", "result.json").read_text())
    return {key: result[key] for key in ("images_per_s", "peak_rss_mb")}


def fastest(results: dict[str, Runs], count: int) -> list[str]:
    """The fastest variants by hand, of those that ran most often."""
    most = max(len(results[name]) for name in BY_HAND)
    left = [name for name in BY_HAND if len(results[name]) == most]
    speed = {name: statistics.median(run["images_per_s"] for run in results[name]) for name in left}
    return sorted(left, key=speed.__getitem__, reverse=True)[:count]


def table(results: dict[str, Runs]) -> str:
    """All figures in Markdown, and the ratio to each variant by hand."""
    (compared,) = fastest(results, 1)
    lines = [
        "| own task | images/s | peak memory of a rank, MB | hvdtrain / this | at least |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, runs in results.items():
        speed, memory = ([run[key] for run in runs] for key in ("images_per_s", "peak_rss_mb"))
        pairs = zip(results[OURS], runs, strict=False)  # a slow variant has one run
        ratios = [one["images_per_s"] / other["images_per_s"] for one, other in pairs]
        ratio, goal = "" if name == OURS else spread(ratios, ".2f"), ""
        if name == compared:
            ratio, goal = verdict(ratio, statistics.median(ratios) >= LEAST), f"{LEAST}"
        lines.append(f"| {name} | {spread(speed, ',.0f')} | {spread(memory, '.0f')} | {ratio} | {goal} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
