"""How long it takes to list 1,000 runs of 10,000 records, and to look at a run of 64 ranks.

usage: python benchmarks/list_runs.py [--runs N] [--records N] [--ranks N]

Makes the runs in a temporary folder; their records are hard links to one file. Of every third run nothing says how it
ended, so that it is looked at twice. Prints seconds of `hvdtrain runs`, the median of five, and what a look at a run
costs that `hvdtrain watch` takes twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hvdtrain.config.options import Config
from hvdtrain.config.sources import to_record
from hvdtrain.runs.history import HistoryReader
from hvdtrain.runs.metrics import NAME
from hvdtrain.system.run_end import RunEnd
from hvdtrain.views.run_view import RunFollower
from hvdtrain.views.terminal.screen import Shown, screen_lines

REPETITIONS = 5
STEPS_PER_EPOCH = 470


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        records = Path(name, "metrics.jsonl")
        write_records(records, options.records)
        runs = Path(name, "runs")
        for number in range(options.runs):
            make_run(runs / f"run-{number:04}", records, 2, has_end=number % 3 > 0)
        command = [sys.executable, "-m", "hvdtrain", "runs", str(runs), "--sort", "-accuracy"]
        seconds = median_s(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        print(f"hvdtrain runs: {options.runs} runs of {options.records} records: {seconds:.2f} s")
        make_run(Path(name, "large"), records, options.ranks, has_end=False)
        follower, curves = RunFollower(Path(name, "large")), HistoryReader(Path(name, "large", NAME))
        shown = Shown.read(follower.look(), curves)
        seconds = median_s(lambda: screen_lines(shown._replace(view=follower.look()), 120, 50))
        print(
            f"hvdtrain watch: a look at {options.ranks} ranks: {1000 * seconds:.1f} ms, {seconds / 0.5:.1%} of a core"
        )
        seconds = median_s(lambda: Shown.read(shown.view, curves))
        print(f"hvdtrain watch: curves and messages: {1000 * seconds:.1f} ms, {seconds / 2:.1%} of a core")


def median_s(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    measured = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        work()
        measured.append(time.perf_counter() - began)
    return statistics.median(measured)


def write_records(path: Path, count: int) -> None:
    """Records of training, with an evaluation after each epoch."""
    with open(path, "w") as file:
        for step in range(1, count + 1):
            epoch = step / STEPS_PER_EPOCH
            record = {"kind": "train", "step": step, "epoch": epoch, "loss": 2.3 / (1 + epoch), "lr": 0.05}
            file.write(json.dumps({**record, "images_per_s": 4000.0, "outside_s": 8e-4, "data_wait_s": 2e-4}) + "\n")
            if step % STEPS_PER_EPOCH == 0:
                file.write(json.dumps({"kind": "test", "step": step, "epoch": epoch, "accuracy": 0.9}) + "\n")


def make_run(folder: Path, records: Path, ranks: int, has_end: bool) -> None:
    """A run's folder with these records."""
    (folder / "heartbeats").mkdir(parents=True)
    (folder / "logs").mkdir()
    os.link(records, folder / "metrics.jsonl")
    config = {"config": to_record(Config()), "ranks": ranks, "steps": 20_000, "started": "2026-05-01T14:03:11+0000"}
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        beat = {"rank": rank, "pid": 1000, "host": "node1", "step": 9999}
        beat |= {"doing": "step", "waits": True, "idle_s": 0.1, "number": 7}
        (folder / "heartbeats" / f"rank-{rank}.json").write_text(json.dumps(beat))
        lines = (f"2026-05-01 14:03:{second:02},000 INFO epoch {second}/60: train loss 1.5\n" for second in range(60))
        (folder / "logs" / f"rank-{rank}.log").write_text("".join(lines))
    if has_end:
        (folder / "result.json").write_text(json.dumps({"accuracy": 0.9, "loss": 0.3, "images_per_s": 4000.0}))
        RunEnd("finished").write(folder)


if __name__ == "__main__":
    main()
