"""18 layouts of one training: ranks, launchers, transports and kills, which with --shards end with one hash.

usage: python benchmarks/layouts.py [--frameworks F...] [--launchers NAME...] [--half]

The training is `--recipe book --shards 8`, LeNet on the real Fashion-MNIST (HVDTRAIN_DATA), of ten steps; in the last
two layouts ranks are killed. --half: instead, 16 ranks of a small network, over the ring and over Horovod, of which 8
are killed one after the other at random steps, and replaced. Prints a table in Markdown; status 1 if a hash differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.runs import metrics

TIMEOUT_S = 600


class Layout(NamedTuple):
    """Ranks, what starts them, what connects them, and how many of them are killed."""

    launcher: str
    strategy: str
    ranks: int
    kills: int = 0


LAYOUTS = [
    Layout("alone", "single", 1),
    *(Layout("launch local", "horovod", ranks) for ranks in (1, 2, 3, 4, 8)),
    *(Layout("horovodrun", "horovod", ranks) for ranks in (2, 5)),
    *(Layout("mpirun", "horovod", ranks) for ranks in (2, 4)),
    *(Layout("mpirun", "mpi", ranks) for ranks in (3, 8)),
    *(Layout("launch local", "ring", ranks) for ranks in (3, 7)),
    *(Layout("torchrun", "ddp", ranks) for ranks in (2, 4)),
    Layout("launch --survive", "ring", 4, 1),
    Layout("launch --survive", "horovod", 4, 2),
]
BOOK = ("--recipe", "book", "--data", "fashion-mnist", "--shards", "8", "--max-steps", "10")
HALF = [Layout("alone", "single", 1), *(Layout("launch --survive", name, 16, 8) for name in ("ring", "horovod"))]
SMALL = ("--model", "mlp", "--data", "digits", "--shards", "16", "--batch-size", "64", "--epochs", "40")


def launched(layout: Layout) -> list[str]:
    """The command line that starts the ranks, without the program."""
    count = str(layout.ranks)
    return {
        "alone": [],
        "launch local": ["hvdtrain", "launch", "local", "-n", count, "--"],
        "launch --survive": ["hvdtrain", "launch", "local", "-n", count, "--survive", "--"],
        "horovodrun": ["horovodrun", "--gloo", "-np", count],
        "mpirun": mpirun_here(layout.ranks),
        "torchrun": ["torchrun", "--standalone", "--nproc-per-node", count, "--no-python"],
    }[layout.launcher]


def train(framework: str, layout: Layout, options: tuple[str, ...], folder: Path) -> tuple[str, float, int]:
    """The hash of the weights, the last loss, and how many ranks were killed."""
    program = [sys.executable, "-m", f"hvdtrain.{framework}_lenet", "--strategy", layout.strategy, *options]
    program += ["--runs", str(folder), "--name", "run", "--log-every", "1", "--seed", "0", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / "output", "w") as output:
        job = subprocess.Popen([*launched(layout), *program], stdout=output, stderr=output, env=environment)
        killed = kill_ranks(job, layout.kills, folder / "run" / "metrics.jsonl")
        if job.wait(TIMEOUT_S):
            raise SystemExit((folder / "output").read_text()[-2000:])
    trained = trained_steps(folder / "run" / "metrics.jsonl")
    return json.loads((folder / "run" / "result.json").read_text())["parameters"], trained[-1]["loss"], killed


def kill_ranks(job: subprocess.Popen[bytes], count: int, path: Path) -> int:
    """Kill so many ranks, one after the other, each when all train again; how many were killed."""
    chance, killed, due, deadline = random.Random(0), 0, 2, time.monotonic() + TIMEOUT_S
    while killed < count and job.poll() is None and time.monotonic() < deadline:
        steps = trained_steps(path)
        if steps and steps[-1]["step"] >= due:
            chance.choice(ranks_of(job)).kill()
            killed, due = killed + 1, steps[-1]["step"] + chance.randint(1, 8 if count > 2 else 3)
        time.sleep(0.02)
    return killed


def trained_steps(path: Path) -> list[dict[str, Any]]:
    """The records of a run's steps so far."""
    return [record for record in metrics.read(path) if record["kind"] == "train"] if path.exists() else []


def ranks_of(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that train: those of the program, whose parents are agents."""
    found = []
    for process in psutil.Process(job.pid).children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words[1:2] == ["-m"] and words[2].endswith("_lenet"):
            found.append(process)
    return found


def main() -> None:
    """Train the layouts, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=["torch"])
    parser.add_argument("--launchers", nargs="+", help="a part of the layouts, such as alone mpirun; default: all")
    parser.add_argument("--half", action="store_true")
    given = parser.parse_args()
    layouts, options = (HALF, SMALL) if given.half else (LAYOUTS, BOOK)
    layouts = [layout for layout in layouts if not given.launchers or layout.launcher in given.launchers]
    differs = False
    print("| framework | launcher | strategy | ranks | killed | hash of the weights | last loss |")
    print("| --- | --- | --- | ---: | ---: | --- | ---: |")
    for framework in given.frameworks:
        hashes = set()
        for layout in layouts:
            if layout.strategy == "ddp" and framework != "torch":
                continue
            with tempfile.TemporaryDirectory() as folder:
                weights, loss, killed = train(framework, layout, options, Path(folder))
            hashes.add(weights)
            row = framework, layout.launcher, f"`{layout.strategy}`", layout.ranks, killed, f"`{weights}`", repr(loss)
            print(f"| {' | '.join(map(str, row))} |", flush=True)
        differs |= len(hashes) > 1
    sys.exit(differs)


if __name__ == "__main__":
    main()
