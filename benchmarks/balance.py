"""What --balance wins where one rank has less of a core than the others. Run by hand, alone on the machine; needs root.

usage: python benchmarks/balance.py [--shares SHARE...] [--steps N] [--repeats N] [--framework NAME] [-- OPTIONS]

Each rank is in a control group that gives it so much of a core (a quota each 20 ms), from its first step on; all of
them together have less than the machine, so that none waits for a core. Measured are the images/s of the job with
equal shares of the shards and with --balance, both in the second half of its steps, as shards move in the first; and
those of each rank's share of a core alone, of whose sum a job has at most all. All jobs must end with the same hash.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from limited_memory import control_groups

from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.records import RunResult, read
from hvdtrain.views.run_state import read_beats

PERIOD_US = 20_000
LOG_EVERY = 10
START_S, ALONE_STEPS = 300, 4
"""How long a job may take to make its first step; a rank alone makes so many steps fewer, as a share of the job's."""


class Measured(NamedTuple):
    """A job. images_s: in the second half of its steps. counts: shards of each rank at the end."""

    images_s: float
    counts: list[int]
    parameters: str


def main() -> None:
    """Run all jobs, and print the table in Markdown; the exit status is 1 if the bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shares = [0.45, 0.45, 0.45, 0.225]
    parser.add_argument("--shares", type=float, nargs="+", default=shares, help="of a core, by rank")
    parser.add_argument("--steps", type=int, default=800, help="default: 800")
    parser.add_argument("--repeats", type=int, default=2, help="default: 2")
    parser.add_argument("--framework", default="torch", help="default: torch")
    parser.add_argument("options", nargs="*", help="of training, after --")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if sum(options.shares) > cores:
        sys.exit(f"{sum(options.shares):g} cores are wanted, and there are {cores}")
    alone = {share: train(options, [share], "off").images_s for share in sorted(set(options.shares))}
    whole = sum(alone[share] for share in options.shares)
    rows, hashes = [f"| each rank alone, their sum | {whole:,.0f} | 1.00 | | |"], set()
    for number in range(options.repeats):
        for balance in ("off", "auto"):
            job = train(options, options.shares, balance)
            hashes.add(job.parameters)
            text = f"--balance {balance}, {number + 1}"
            counts = ", ".join(map(str, job.counts)) or "equal"
            rows.append(
                f"| {text} | {job.images_s:,.0f} | {job.images_s / whole:.2f} | {counts} | `{job.parameters}` |"
            )
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"Cores of the ranks: {', '.join(map(str, options.shares))}.\n")
    print("| shards | images/s | of the sum | of each rank at the end | hash |\n| --- | ---: | ---: | --- | --- |")
    print("\n".join(rows))
    sys.exit(len(hashes) > 1)


def train(options: argparse.Namespace, shares: Sequence[float], balance: str) -> Measured:
    """A job whose ranks have these shares of a core."""
    ranks, steps = len(shares), options.steps if len(shares) > 1 else options.steps // ALONE_STEPS
    with tempfile.TemporaryDirectory() as folder, limited(shares) as groups:
        strategy = "horovod" if ranks > 1 else "single"
        command = [
            *([sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(ranks), "--"] if ranks > 1 else []),
            *(sys.executable, "-m", "hvdtrain", "train", "--framework", options.framework, "--strategy", strategy),
            *("--data", "synthetic", "--batch-size", "256", "--shards", "16", "--device", "cpu", "--bind", "none"),
            *("--epochs", "1000", "--max-steps", str(steps), "--log-every", str(LOG_EVERY), "--balance", balance),
            *("--runs", folder, "--name", "run", "--quiet", "--checkpoint-every", "0s", *options.options),
        ]
        run = Path(folder) / "run"
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for pid, group in zip(training(run, ranks, job), groups, strict=True):
                (group / "cgroup.procs").write_text(str(pid))
            error = job.communicate()[1]
        finally:
            job.terminate()
            job.wait()
        if job.returncode:
            sys.exit(f"the job ended with status {job.returncode}: {error[-2000:]}")
        return measured(run, steps)


def training(run: Path, ranks: int, job: subprocess.Popen[str]) -> list[int]:
    """The process ids of a job's ranks, as soon as all have made a step."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and job.poll() is None:
        pids = [beat.pid for beat in read_beats(run).values() if beat.step]
        if len(pids) == ranks:
            return pids
        time.sleep(0.05)
    job.terminate()
    sys.exit(f"the job makes no steps: {job.communicate()[1][-2000:]}")


def measured(run: Path, steps: int) -> Measured:
    """What a run has recorded."""
    records = metrics.read(run / "metrics.jsonl")
    speeds = [one["images_per_s"] for one in records if one["kind"] == "train" and one["step"] > steps / 2]
    moved = [one["counts"] for one in records if one["kind"] == "shards"]
    return Measured(
        statistics.median(speeds), moved[-1] if moved else [], read(run / "result.json", RunResult).parameters
    )


@contextlib.contextmanager
def limited(shares: Sequence[float]) -> Iterator[list[Path]]:
    """A control group for each of these shares of a core. Raises UserError where none can be made."""
    with control_groups("cpu", len(shares)) as (version_1, groups):
        for group, share in zip(groups, shares, strict=True):
            if not (group / ("cpu.cfs_quota_us" if version_1 else "cpu.max")).exists():
                raise UserError(
                    f"{group.parent} has no control of processors", "run this on a host whose kernel has it"
                )
            quota_us = round(share * PERIOD_US)
            if version_1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        yield groups


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
