"""The strategies to measure: one job for each strategy, number of replicas and repeat.

A job's result is its run folder, so a benchmark that was stopped continues with the jobs that are not finished.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from hvdtrain.config.option import arguments, as_json, as_options, facts, invalid, key, option
from hvdtrain.config.options import MAX_SHARDS, Config, Framework
from hvdtrain.config.rules import SHARDED
from hvdtrain.config.sources import check_recorded, find, from_text
from hvdtrain.errors import UserError
from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.system.text import did_you_mean

DECIDED = {
    *("recipe", "framework", "strategy", "shards", "batch_size", "batch_scope", "max_steps"),
}
"""Options of training that each job has from its row, or from other options."""
JOB_TIMEOUT_S = 600
GRACE_S = 10


@dataclass(frozen=True)
class StrategyBenchOptions:
    """Compare strategies: speed, scaling, and how far the weights are from those of a single process."""

    rows: tuple[str, ...] = option(())
    """Strategies to run, by name or the beginnings of names (torch, torch/horovod); default: all."""
    np: str = option("2")
    """Numbers of ranks or devices, for example 1,2,4."""
    scaling: Literal["strong", "weak"] = option("strong")
    """strong divides a global batch of --batch-size rows; weak gives that many rows to each rank or device."""
    batch_size: int = option(256, minimum=1)
    """Rows of a global batch, or of each replica's batch with --scaling weak."""
    steps: int = option(60, minimum=20)
    """Steps of a job; the first ten are warm-up and do not count."""
    repeats: int = option(5, minimum=1)
    """How often each job runs."""
    shards: int = option(0, minimum=0, maximum=MAX_SHARDS)
    """Shards of each global batch: all strategies and numbers of ranks then train the same bits; 0 for none."""
    set: tuple[str, ...] = option((), is_repeated=True)
    """NAME=VALUE for another option of training, such as model=resnet20; may be given several times. data is
    fashion-mnist if HVDTRAIN_DATA has it, else synthetic."""
    output: Path = option(Path("runs/bench"))
    """Folder for the jobs' run folders and the report; finished jobs in it are not run again."""

    def __post_init__(self) -> None:
        as_options(self)
        if not all(number.isdecimal() and int(number) for number in self.np.split(",")):
            raise UserError(f"--np {self.np} is invalid", "give positive integers, for example 1,2,4")
        if self.shards and self.sizes[-1] > self.shards:
            raise invalid("np", self.np, f"each rank needs a shard, and there are {self.shards}", "give more --shards")
        _ = self.given

    @property
    def sizes(self) -> list[int]:
        return sorted({int(number) for number in self.np.split(",")})

    @property
    def given(self) -> dict[str, Any]:
        """The options of training that --set gives, by name. Raises UserError for those that cannot be given."""
        given = {}
        for text in self.set:
            name, sign, value = text.partition("=")
            where = f"--set {text}"
            if not sign:
                raise UserError(f"{where}: no value", "write --set NAME=VALUE, such as --set model=resnet20")
            name = find(name, where)
            if name in DECIDED or name not in facts(Config) or name == "arg":
                raise UserError(f"{where}: bench decides --{key(name)} itself", "leave it out, or use sweep")
            given[name] = from_text(name, value, where)
        return given


def default_dataset() -> str:
    """fashion-mnist if HVDTRAIN_DATA has it, else synthetic images."""
    folder = os.environ.get("HVDTRAIN_DATA")
    return "fashion-mnist" if folder and Path(folder, "fashion-mnist").is_dir() else "synthetic"


class BenchRow(NamedTuple):
    """A strategy of a framework: one row of the report for each number of replicas."""

    framework: str
    strategy: str
    over: str
    """What shares a batch: `ranks`, `devices` or `one`."""
    problem: str
    """Why it cannot run here; empty if it can."""
    controller: str = ""
    """`mpi` where Horovod runs over MPI instead of Gloo."""
    sums_shards: bool = True
    """Whether it trains with --shards."""

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.framework, self.strategy, self.controller)))


class BenchJob(NamedTuple):
    row: BenchRow
    replicas: int
    repeat: int

    @property
    def name(self) -> str:
        return f"{self.row.name.replace('/', '-')}-np{self.replicas}-r{self.repeat}"


def launched_here(ranks: int) -> list[str]:
    """hvdtrain's launcher for ranks on this host, by which Horovod runs over Gloo; without the program."""
    return [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(ranks), "--"]


def environment() -> dict[str, str]:
    """One thread per rank or device, and the programs next to this Python first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_LOG_LEVEL": "error"}
    return {"OMP_NUM_THREADS": "1", **quiet, **os.environ, "PATH": path}


def all_rows() -> list[BenchRow]:
    """All strategies of all frameworks. Each framework lists its own in a subprocess, as they conflict in one."""
    return [row for framework in get_args(Framework) for row in _rows_of(framework)]


def _rows_of(framework: str) -> list[BenchRow]:
    command = [sys.executable, "-m", "hvdtrain", "train", "--framework", framework, "--strategy", "help"]
    listed = subprocess.run(command, env={**environment(), "HVDTRAIN_JSON": "1"}, text=True, capture_output=True)
    if listed.returncode:
        reason = listed.stderr.strip().splitlines()[-1].removeprefix("hvdtrain: rank 0: ")
        return [BenchRow(framework, "single", "one", reason)]
    rows = []
    for entry in json.loads(listed.stdout.strip().splitlines()[-1]):
        about = entry["strategy"], entry["over"], entry["problem"]
        rows.append(BenchRow(framework, *about, sums_shards=entry["sums_shards"]))
        if entry["strategy"] == "horovod":
            rows.append(rows[-1]._replace(controller="mpi"))
    return rows


def choose(rows: list[BenchRow], wanted: tuple[str, ...]) -> list[BenchRow]:
    """The rows whose names start with one of `wanted`, and the `single` of their frameworks, the base of comparisons.

    Raises UserError for a name that matches no row.
    """
    names = beginning_with(wanted, [row.name for row in rows], "--rows")
    chosen = [row for row in rows if row.name in names]
    frameworks = {row.framework for row in chosen}
    return [row for row in rows if row in chosen or (row.framework in frameworks and row.name.endswith("/single"))]


def with_shards(rows: list[BenchRow], shards: int) -> list[BenchRow]:
    """The rows with the reason why those that cannot train in shards do not run, if there are any shards."""
    reason = f"it does not train in shards, as {SHARDED} do"
    return [row._replace(problem=reason) if shards and not row.sums_shards and not row.problem else row for row in rows]


def beginning_with(wanted: Sequence[str], names: Sequence[str], option: str) -> list[str]:
    """The names that begin with one of `wanted`, or all. Raises UserError for one that is the beginning of none."""
    for prefix in wanted:
        if not any(name.startswith(prefix) for name in names):
            hint = did_you_mean(prefix, names)
            raise UserError(f"{option} {prefix}: none has that name{hint}", f"choose from {', '.join(names)}")
    return [name for name in names if name.startswith(tuple(wanted) or "")]


def plan(rows: list[BenchRow], options: StrategyBenchOptions) -> list[BenchJob]:
    """All jobs. Those of a repeat follow each other, so that drift of the machine's speed affects all rows equally."""
    runnable = [row for row in rows if not row.problem]
    return [
        BenchJob(row, replicas, repeat)
        for repeat in range(options.repeats)
        for row in runnable
        for replicas in ([1] if row.over == "one" else options.sizes)
    ]


def settings(job: BenchJob, options: StrategyBenchOptions) -> dict[str, Any]:
    """The options of training that decide the job's result; the others are the recipe's."""
    replicas = job.replicas if options.scaling == "weak" else 1
    return {
        **options.given,
        **({"shards": options.shards} if options.shards else {}),
        "framework": job.row.framework,
        "strategy": job.row.strategy,
        "init": options.given.get("init", "xavier"),
        # So low that rounding errors do not grow: a larger distance from a single process then shows a mistake.
        "lr": options.given.get("lr", 0.02),
        "data": options.given.get("data", default_dataset()),
        "batch_size": options.batch_size * replicas,
        "max_steps": options.steps,
    }


def is_finished(job: BenchJob, options: StrategyBenchOptions) -> bool:
    """Whether the job's result exists. Raises UserError if it was measured with other options."""
    folder = options.output / job.name
    if not (folder / "result.json").is_file():
        return False
    check_recorded(folder, as_json(settings(job, options)))
    return True


def command(job: BenchJob, options: StrategyBenchOptions) -> list[str]:
    row, python = job.row, sys.executable
    by_mpi = "mpi" in (row.strategy, row.controller)
    launcher = (mpirun_here if by_mpi else launched_here)(job.replicas) if row.over == "ranks" else []
    chosen = arguments(settings(job, options))
    devices = ["--devices", str(job.replicas)] if row.over == "devices" else []
    runtime = ["--runs", str(options.output), "--name", job.name, "--log-every", "10", "--quiet"]
    return [*launcher, python, "-m", "hvdtrain", "train", "--recipe", "book", *chosen, *runtime, *devices]


def run_jobs(jobs: list[BenchJob], options: StrategyBenchOptions) -> list[str]:
    """Run jobs that are not finished; returns why those failed that did."""
    reasons = JobSeries(environment(), JOB_TIMEOUT_S, GRACE_S).run([_series_job(job, options) for job in jobs])
    return [f"{job.name}: {reason}" for job, reason in zip(jobs, reasons, strict=True) if reason]


def _series_job(job: BenchJob, options: StrategyBenchOptions) -> SeriesJob:
    title = f"{job.row.name}, {job.replicas} replica(s), repeat {job.repeat + 1}/{options.repeats}"
    folder = options.output / job.name

    def prepare() -> bool:
        if (folder / "result.json").is_file():  # another benchmark has run it meanwhile
            return False
        shutil.rmtree(folder, ignore_errors=True)  # left by a benchmark that was stopped
        return True

    return SeriesJob(title, command(job, options), folder.with_name(f"{job.name}.log"), prepare)
