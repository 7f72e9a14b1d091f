"""The model of scale against jobs on slow links, measured on this machine. Run by hand; needs root, ip and tc.

usage: python benchmarks/links/throttled.py [--rates MBIT...] [--ranks N...] [--strategies ring horovod] [--output FILE]

Each rank is a host of its own: a network namespace, connected to a switch by a link that `tc` limits to so few Mbit/s
that communication takes most of a step, and this machine's cores little of it. The model does not see these jobs. It
gets the record of one rank, without a network; latency by `allreduce.py` of two ranks without a limit; and the
rate that `tc` was given. Ranks share this machine's cores, as those of a cluster would not, so computation counts
ranks / cores times where there are more ranks than cores. All namespaces are removed at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from host_jobs import HostJob
from hosts import Speed, hosts

from hvdtrain.measure.bench.strategies import environment
from hvdtrain.measure.scale.allreduce import STRATEGIES, Link
from hvdtrain.measure.scale.measured import Workload, fit_tables, read_runs, read_table
from hvdtrain.measure.scale.step import StepModel, StepParts

ALLREDUCE = Path(__file__).parents[1] / "allreduce.py"
COMPARED = ("ring", "horovod")
STEPS, LOG_EVERY = 40, 5
SECONDS = 900


def main() -> None:
    """Measure all jobs, append them to the output file, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 20, 50], help="Mbit/s; default: 10 20 50")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="default: 2 4 8")
    parser.add_argument("--strategies", nargs="+", choices=COMPARED, default=COMPARED)
    parser.add_argument("--batch-size", type=int, default=8, help="images of a rank; default: 8")
    parser.add_argument("--output", type=Path, default=Path("runs/throttled.jsonl"), help="file to append results to")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also removes the namespaces
    rows = []
    with tempfile.TemporaryDirectory() as folder, hosts(max(options.ranks)) as made:
        workload = one_rank(Path(folder), options.batch_size)
        for strategy in options.strategies:
            latency_s = unlimited(strategy)
            for rate in options.rates:
                made.set_speed(Speed(rate))
                for ranks in options.ranks:
                    predicted = predict(workload, strategy, latency_s, rate, ranks)
                    name = f"{strategy}-{rate:g}-{ranks}"
                    measured = train(Path(folder), name, made.spaces[:ranks], strategy, options.batch_size)
                    row = {
                        "strategy": strategy,
                        "mbit_s": rate,
                        "ranks": ranks,
                        "predicted_ms": sum(predicted) * 1e3,
                        "measured_ms": measured * 1e3,
                        "error": sum(predicted) / measured - 1,
                        "communication": 1 - predicted.compute / sum(predicted),
                    }
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    with open(options.output, "a") as file:
                        file.write(json.dumps(row) + "\n")
    print(table(rows))


def one_rank(folder: Path, batch: int) -> Workload:
    """The record of a rank that trains alone."""
    command = [sys.executable, "-m", "hvdtrain", "train", "--strategy", "single", *settings(folder, "single", batch)]
    subprocess.run(command, env=environment(), check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)
    return read_runs((folder / "single",))


def settings(folder: Path, name: str, batch: int) -> list[str]:
    """Options of training for a job whose ranks have `batch` images each."""
    return [
        *("--recipe", "book", "--data", "synthetic", "--batch-scope", "per-rank", "--batch-size", str(batch)),
        *("--max-steps", str(STEPS), "--log-every", str(LOG_EVERY), "--runs", str(folder), "--name", name),
        *("--quiet", "--hang-timeout", "600"),
    ]


def unlimited(strategy: str) -> float:
    """The latency of the strategy's library between two ranks of this machine, without a limit."""
    allreduce = STRATEGIES[strategy]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--libraries", allreduce.library, "--repeats", "1", "--output", folder]
        command = [sys.executable, str(ALLREDUCE), *options, "--sizes", "8", "1024", "16384"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return fit_tables([read_table(Path(folder) / "allreduce.json")], allreduce).latency_s


def predict(workload: Workload, strategy: str, latency_s: float, rate: float, ranks: int) -> StepParts:
    """The step of `ranks` ranks on links of `rate` Mbit/s."""
    link = Link(latency_s, Speed(rate).byte_s)
    shared = max(ranks / len(os.sched_getaffinity(0)), 1.0)
    busy = dataclasses.replace(workload, fixed_s=workload.fixed_s * shared, row_s=workload.row_s * shared)
    return StepModel(busy, STRATEGIES[strategy], link, link).step(ranks, workload.rows)


def train(folder: Path, name: str, spaces: Sequence[str], strategy: str, batch: int) -> float:
    """Median seconds of a step of a job with one rank in each namespace."""
    command = [sys.executable, "-m", "hvdtrain", "train", "--strategy", strategy, *settings(folder, name, batch)]
    HostJob(name, command, strategy == "horovod", folder, SECONDS).run(spaces)
    result = json.loads((folder / name / "result.json").read_text())
    return result["global_batch"] / result["images_per_s"]


def table(rows: list[dict[str, float]]) -> str:
    """All rows in Markdown, and the median error."""
    lines = [
        "| strategy | link, Mbit/s | ranks | step predicted, ms | measured, ms | error | communication |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['strategy']} | {row['mbit_s']:g} | {row['ranks']} | {row['predicted_ms']:,.0f} "
            f"| {row['measured_ms']:,.0f} | {row['error']:+.1%} | {row['communication']:.0%} |"
        )
    errors = statistics.median(abs(row["error"]) for row in rows)
    return "\n".join([*lines, "", f"Median error: {errors:.1%}."])


if __name__ == "__main__":
    main()
