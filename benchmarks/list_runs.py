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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.live_runs import records
from support.run_folders import write_beat, write_log, write_run

from hvdtrain.runs.history import HistoryReader
from hvdtrain.runs.metrics import NAME
from hvdtrain.system.run_end import RunEnd
from hvdtrain.views.run_view import RunFollower
from hvdtrain.views.terminal.screen import Shown, screen_lines

REPETITIONS = 5


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        metrics = Path(name, NAME)
        metrics.write_text("\n".join(records(options.records)) + "\n")
        runs = Path(name, "runs")
        for number in range(options.runs):
            make_run(runs / f"run-{number:04}", metrics, 2, has_end=number % 3 > 0)
        command = [sys.executable, "-m", "hvdtrain", "runs", str(runs), "--sort", "-accuracy"]
        seconds = median_s(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        print(f"hvdtrain runs: {options.runs} runs of {options.records} records: {seconds:.2f} s")
        make_run(Path(name, "large"), metrics, options.ranks, has_end=False)
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


def make_run(folder: Path, metrics: Path, ranks: int, has_end: bool) -> None:
    """A run's folder with these records."""
    write_run(folder, ranks)
    os.link(metrics, folder / NAME)
    for rank in range(ranks):
        write_beat(folder, rank)
        write_log(folder, rank, *(f"epoch {number}/60: train loss 1.5" for number in range(48)))
    if has_end:
        (folder / "result.json").write_text(json.dumps({"accuracy": 0.9, "loss": 0.3, "images_per_s": 4000.0}))
        RunEnd("finished").write(folder)


if __name__ == "__main__":
    main()
