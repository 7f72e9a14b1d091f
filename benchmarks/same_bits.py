"""The table of docs/same-bits.md: with --shards, each training ends with the same bits however many ranks it has.

usage: python benchmarks/same_bits.py [--frameworks F...] [--networks N...] [--optimizers O...] [--ranks R...]
                                      [--transports T...] [--shards V] [--output FILE]

A row of the table is a training: a framework, a network (or a task with an LSTM and dropout) and an optimizer, an
epoch on small data; `default` is the whole training of `python -m hvdtrain.FRAMEWORK_lenet`, of 12 epochs. Each row is
trained by one process, and by each number of ranks over each transport. Compared are the hash of the weights in
`result.json`, and every number of `metrics.jsonl` except times and speeds. Trainings with the same framework, ranks and
launcher follow each other in the same processes, because starting a framework takes longer than most of them.

Writes the table to FILE in Markdown, and next to it all hashes as JSON. The exit status is 1 if a row has two hashes.
Frameworks that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.same_bits import numbers, weights_hash

from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.measure.bench.strategies import environment, launched_here
from hvdtrain.runs import record

HERE = Path(__file__).resolve().parent
TASKS, TRAIN_SEVERAL = HERE.parent / "tests" / "support" / "tasks", HERE / "train_several.py"
FRAMEWORKS = ("torch", "tensorflow", "mxnet")
NETWORKS = ("lenet", "resnet20", "lstm", "default")
OPTIMIZERS = {
    "sgd": ("--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.02"),
    "adam": ("--optimizer", "adam", "--lr", "0.002"),
}
RANKS = (1, 2, 3, 4, 5, 8)
DEFAULT_RANKS, DEFAULT_TRANSPORTS = (1, 2, 3), ("horovod-gloo", "horovod-mpi")
"""What trains `default`, which is much longer than the other rows."""
ROWS, TEST_ROWS, IMAGE = 197, 40, (16, 16, 3)
"""Images for ResNet-20: three batches of 64, and one of 5 rows, which leaves shards and ranks without rows."""
JOB_TIMEOUT_S, GRACE_S = 1800, 20


class Transport(NamedTuple):
    """What connects the ranks."""

    launcher: str
    """What starts them: hvdtrain's own launcher, `mpirun`, or nothing for one process."""
    strategy: str
    frameworks: tuple[str, ...] = FRAMEWORKS


ALONE = "single"
TRANSPORTS = {
    "horovod-gloo": Transport("local", "horovod"),
    "ring": Transport("local", "ring"),
    "ddp": Transport("local", "ddp", ("torch",)),
    "horovod-mpi": Transport("mpirun", "horovod"),
    "mpi": Transport("mpirun", "mpi"),
}
"""Those over ranks, by name."""
ALL_TRANSPORTS = {ALONE: Transport("alone", "single"), **TRANSPORTS}


class Row(NamedTuple):
    """A training that is to have one hash."""

    framework: str
    network: str
    optimizer: str

    @property
    def name(self) -> str:
        return "-".join(self)


class Run(NamedTuple):
    """A row, trained by some ranks."""

    row: Row
    transport: str
    ranks: int

    @property
    def title(self) -> str:
        return ALONE if self.transport == ALONE else f"{self.transport} x {self.ranks}"

    @property
    def folder(self) -> str:
        return f"{self.row.name}-{self.transport}-{self.ranks}"

    @property
    def job(self) -> tuple[str, int, str]:
        """What runs that share processes have in common."""
        return self.row.framework, self.ranks, ALL_TRANSPORTS[self.transport].launcher


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    weights: str
    """Hash of parameters and running statistics."""
    metrics: str
    """Hash of all numbers in metrics.jsonl except times and speeds."""


Outcomes = dict[Run, Outcome | None]
"""Of the runs of a row; None of one that failed."""


def main() -> None:
    """Train all runs that the options choose, and write the table."""
    options = parse_options()
    runs = list(chosen(options))
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-same-bits-"))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        for outcomes, about in train_all(runs, options.shards, folder):  # after each job, as it may be the last one
            text = table(outcomes, about, options.shards)
            options.output.write_text(text + "\n")
            options.output.with_suffix(".json").write_text(json.dumps(as_json(outcomes, about), indent=2) + "\n")
        print(text)
        if any(problems(of_row) for of_row in outcomes.values()):
            stack.pop_all()
            sys.exit(f"the bits differ, or a run failed; all runs are in {folder}")


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=installed)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, help="default: 1 2 3 4 5 8")
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--shards", type=int, default=8, help="shards of a global batch; default: 8")
    parser.add_argument("--output", type=Path, default=Path("runs/same-bits.md"), help="file for the table")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> Iterator[Run]:
    """The runs that the options choose; one process has no transport."""
    for parts in itertools.product(options.frameworks, options.networks, options.optimizers):
        row = Row(*parts)
        if row.network == "default" and row.optimizer != "sgd":
            continue
        for ranks in options.ranks:
            names = [ALONE] if ranks == 1 else options.transports
            for transport in names if row.network != "default" or ranks in DEFAULT_RANKS else ():
                fits = row.framework in ALL_TRANSPORTS[transport].frameworks
                if fits and (row.network != "default" or transport in (ALONE, *DEFAULT_TRANSPORTS)):
                    yield Run(row, transport, ranks)


def train_all(runs: list[Run], shards: int, folder: Path) -> Iterator[tuple[dict[Row, Outcomes], dict[str, Any]]]:
    """After each job: the outcomes of each row so far, and what the first run recorded in `config.json`."""
    images = folder / "images.npz"
    write_images(images)
    jobs: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        jobs.setdefault(run.job, []).append(run)
    series = [series_job(of_job, shards, images, folder) for of_job in jobs.values()]
    outcomes: dict[Row, Outcomes] = {run.row: {} for run in runs}
    about: dict[str, Any] = {}
    for of_job, _ in zip(jobs.values(), JobSeries(environment(), JOB_TIMEOUT_S, GRACE_S).run(series), strict=True):
        for run in of_job:
            outcomes[run.row][run] = read_outcome(folder / run.folder)
            if not about and outcomes[run.row][run]:
                about = json.loads((folder / run.folder / "config.json").read_text())
        yield outcomes, about


def write_images(path: Path) -> None:
    """Images for ResNet-20, and their labels."""
    generator = np.random.default_rng(0)
    parts: dict[str, np.ndarray] = {}
    for part, count in (("train", ROWS), ("test", TEST_ROWS)):
        labels = generator.integers(0, 10, count)
        images = generator.integers(0, 156, (count, *IMAGE)) + 10 * labels[:, None, None, None]  # can be learned
        parts |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels}
    np.savez(path, **parts)


def series_job(runs: list[Run], shards: int, images: Path, folder: Path) -> SeriesJob:
    """The job of runs that share processes."""
    framework, ranks, launcher = runs[0].job
    start = {"alone": [], "local": launched_here(ranks), "mpirun": mpirun_here(ranks)}[launcher] if ranks > 1 else []
    command = [*start, sys.executable, str(TRAIN_SEVERAL)]
    for number, run in enumerate(runs):
        command += ["--then"] * (number > 0) + training_options(run, shards, images, folder)
    title = f"{framework}, {ranks} rank(s), {launcher}: {len(runs)} trainings"
    return SeriesJob(title, command, folder / f"{framework}-{ranks}-{launcher}.log")


def training_options(run: Run, shards: int, images: Path, folder: Path) -> list[str]:
    """The options of a run."""
    framework, network, optimizer = run.row
    trained = {
        "lenet": ("--epochs", "1", "--data", "digits"),
        "resnet20": ("--epochs", "1", "--model", "resnet20", "--data", str(images)),
        "lstm": ("--epochs", "1", "--model", str(TASKS / f"of_{framework}.py:Sequences"), "--batch-size", "32"),
        "default": (),
    }[network]
    place = ("--runs", str(folder), "--name", run.folder, "--log-every", "1", "--quiet", "--device", "cpu")
    strategy = ("--framework", framework, "--strategy", ALL_TRANSPORTS[run.transport].strategy)
    given = OPTIMIZERS[optimizer] if network != "default" else ()
    return [*strategy, "--shards", str(shards), *trained, *given, *place]


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome of the run in a folder; None if it has no result."""
    if not (folder / "result.json").is_file():
        return None
    content = json.dumps(numbers(folder)).encode()
    return Outcome(weights_hash(folder), hashlib.sha256(content).hexdigest()[:16])


def problems(of_row: Outcomes) -> list[str]:
    """What keeps a row from having one hash: the runs that failed, and those whose bits are not those of most runs."""
    texts = []
    if failed := [run.title for run, outcome in of_row.items() if not outcome]:
        texts.append(f"failed: {', '.join(failed)}")
    for kind in ("weights", "metrics"):
        values = {run: getattr(outcome, kind) for run, outcome in of_row.items() if outcome}
        usual = most_common(values.values())
        if others := [f"{run.title} ({value})" for run, value in values.items() if value != usual]:
            texts.append(f"other {kind}: {', '.join(others)}")
    return texts


def most_common(values: Iterable[str]) -> str:
    """The value that most runs have; empty without runs."""
    return next((value for value, _ in Counter(values).most_common(1)), "")


def table(outcomes: dict[Row, Outcomes], about: dict[str, Any], shards: int) -> str:
    """All rows in Markdown, after a line that says by what they were trained."""
    lines = [
        described(about, shards),
        "",
        "| framework | network | optimizer | hash of the weights | runs | |",
        "| --- | --- | --- | --- | ---: | --- |",
    ]
    for row, of_row in outcomes.items():
        usual = most_common(outcome.weights for outcome in of_row.values() if outcome)
        verdict = "; ".join(problems(of_row)) or (
            f"one hash in all {len(of_row)} runs" if of_row else "not trained yet"
        )
        lines.append(f"| {' | '.join(row)} | {usual} | {len(of_row)} | {verdict} |")
    return "\n".join(lines)


def described(about: dict[str, Any], shards: int) -> str:
    """What decides the bits, from the record of a run."""
    host, bits = about.get("host") or record.host(), about.get("arithmetic", {})
    packages = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    parts = (
        host["processor"],
        bits.get("instruction_set"),
        bits.get("libc"),
        f"{bits.get('threads')} thread(s) a rank",
    )
    return f"{', '.join(filter(None, parts))}; {shards} shards; {packages}"


def as_json(outcomes: dict[Row, Outcomes], about: dict[str, Any]) -> dict[str, Any]:
    """All hashes, and what decides the bits."""
    rows = [
        {
            **row._asdict(),
            "problems": problems(of_row),
            "runs": {run.title: outcome and dataclasses.asdict(outcome) for run, outcome in of_row.items()},
        }
        for row, of_row in outcomes.items()
    ]
    return {"rows": rows, **{name: about.get(name) for name in ("versions", "host", "arithmetic")}}


if __name__ == "__main__":
    main()
