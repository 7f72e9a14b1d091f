"""python -m hvdtrain bench: every strategy side by side, each job a process of its own through its launcher.

The jobs of a repeat follow each other, so that drift of the machine's speed hits all alike. A job's result is its run
folder: what is finished there is not run again, so a bench that was stopped goes on where it stood.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import tyro

from hvdtrain.cli import report
from hvdtrain.config.options import Framework
from hvdtrain.errors import HvdtrainError, TrainingError, UserError
from hvdtrain.launch.launchers.mpirun import mpirun_here

STORES = {"device": "devices", "local": "devices", "dist_sync": "ranks", "dist_device_sync": "ranks"}
JOB_TIMEOUT_S = 600


@dataclass(frozen=True)
class Options:
    """Measure strategies side by side: speed, scaling, and the distance of the weights from one process's."""

    rows: tuple[str, ...] = ()
    """Rows to run, as --show names them, or their beginnings (torch, mxnet/kvstore); all by default."""
    np: str = "2"
    """Numbers of ranks or devices, such as 1,2,4."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong shares a global batch of --batch-size rows; weak gives each rank or device as many."""
    batch_size: int = 256
    """Rows of a global batch, or of each replica's with --scaling weak."""
    steps: int = 60
    """Steps of a job; the first ten warm up and do not count."""
    repeats: int = 2
    """Times that each job runs."""
    data: str = "auto"
    """Data set; auto takes fashion-mnist where HVDTRAIN_DATA has it, else synthetic."""
    output: Path = Path("runs/bench")
    """Folder of the jobs' run folders and of the report; a second bench there goes on where the first stopped."""
    show: bool = False
    """Name the rows, and end."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("steps", 20), ("repeats", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: give {least} or more")
        if not all(word.isdecimal() and int(word) for word in self.np.split(",")):
            raise UserError(f"--np {self.np}: give numbers above 0, such as 1,2,4")

    @property
    def sizes(self) -> list[int]:
        return sorted({int(word) for word in self.np.split(",")})


class Row(NamedTuple):
    """A strategy of a framework in a style."""

    framework: str
    strategy: str
    api: str
    kvstore: str
    over: str
    """`ranks`, `devices` or `one`."""
    problem: str

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.framework, self.strategy, self.kvstore, self.api)))


class Job(NamedTuple):
    """One run of a row."""

    row: Row
    replicas: int
    repeat: int

    @property
    def name(self) -> str:
        return f"{self.row.name.replace('/', '-')}-np{self.replicas}-r{self.repeat}"


def main(argv: list[str]) -> None:
    """Run the bench; ends the process with exit status 1 where a job failed."""
    try:
        if argv[:1] == ["allreduce"]:
            from hvdtrain.bench import allreduce

            allreduce.main(argv[1:])
            return
        run(tyro.cli(Options, prog="python -m hvdtrain bench", args=argv))
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def run(options: Options) -> None:
    """All jobs that are not finished yet, and the report. Raises TrainingError where some failed."""
    rows = choose(all_rows(), options.rows)
    if options.show:
        for row in rows:
            print(f"{row.name:32} {row.problem and 'not here: ' + row.problem}")
        return
    data = options.data if options.data != "auto" else _data()
    jobs = [job for job in plan(rows, options) if not finished(job, options, data)]
    failed = Bench(options, data).run(jobs)
    for row in rows:
        if row.problem:
            print(f"{row.name}: not run here: {row.problem}")
    report.main([str(options.output), "--output", str(options.output / "report")])
    if failed:
        raise TrainingError(f"{len(failed)} job(s) failed: " + "; ".join(failed))


def _data() -> str:
    folder = Path(os.environ.get("HVDTRAIN_DATA", ""), "fashion-mnist")
    return "fashion-mnist" if os.environ.get("HVDTRAIN_DATA") and folder.is_dir() else "synthetic"


def all_rows() -> list[Row]:
    """What every framework offers here, asked in a process of its own: frameworks do not share one well."""
    rows = []
    for framework in get_args(Framework):
        words = [sys.executable, "-m", "hvdtrain", "train", "--framework", framework, "--strategy", "help"]
        asked = subprocess.run(words, env={**environment(), "HVDTRAIN_JSON": "1"}, text=True, capture_output=True)
        if asked.returncode:
            reason = asked.stderr.strip().splitlines()[-1].removeprefix("hvdtrain: rank 0: ")
            rows.append(Row(framework, "single", "", "", "one", reason))
            continue
        offers = json.loads(asked.stdout.strip().splitlines()[-1])
        first = offers[0]["api"]
        for offer in offers:
            api = "" if offer["api"] == first else offer["api"]
            for store, over in STORES.items() if offer["strategy"] == "kvstore" else (("", offer["over"]),):
                rows.append(Row(framework, offer["strategy"], api, store, over, offer["problem"]))
    return rows


def choose(rows: list[Row], wanted: tuple[str, ...]) -> list[Row]:
    """The rows whose names begin as wanted, and each framework's `single`, which the others are measured by."""
    for word in wanted:
        if not any(_begins(row, word) for row in rows):
            raise UserError(f"--rows {word}: no such row; python -m hvdtrain bench --show names them")
    chosen = [row for row in rows if not wanted or any(_begins(row, word) for word in wanted)]
    frameworks = {row.framework for row in chosen}
    return [row for row in rows if row in chosen or (row.framework in frameworks and row.name.endswith("/single"))]


def _begins(row: Row, word: str) -> bool:
    return f"{row.name}/".startswith(f"{word.rstrip('/')}/")


def plan(rows: list[Row], options: Options) -> list[Job]:
    """All jobs, repeat by repeat."""
    runnable = [row for row in rows if not row.problem]
    return [
        Job(row, replicas, repeat)
        for repeat in range(options.repeats)
        for row in runnable
        for replicas in ([1] if row.over == "one" else options.sizes)
    ]


def settings(job: Job, options: Options, data: str) -> dict[str, Any]:
    """The options of training that decide the job's result; the rest is the recipe's."""
    replicas = job.replicas if options.scaling == "weak" else 1
    return {
        "framework": job.row.framework,
        "strategy": job.row.strategy,
        "api": job.row.api or "auto",
        **({"kvstore": job.row.kvstore} if job.row.kvstore else {}),
        "init": "xavier",
        # Low enough that rounding does not grow: the distance from one process then tells mistakes.
        "lr": 0.02,
        "data": data,
        "batch_size": options.batch_size * replicas,
        "max_steps": options.steps,
    }


def finished(job: Job, options: Options, data: str) -> bool:
    """Whether the job's result is there. Raises UserError where that was measured by other settings."""
    folder = options.output / job.name
    if not (folder / "result.json").is_file():
        return False
    recorded = json.loads((folder / "config.json").read_text())["config"]
    for name, value in settings(job, options, data).items():
        if recorded[name] != value:
            raise UserError(
                f"{folder} was measured with --{name.replace('_', '-')} {recorded[name]}, and now it is {value}: "
                "give another --output"
            )
    return True


def words(job: Job, options: Options, data: str) -> list[str]:
    """What starts the job."""
    row, python = job.row, sys.executable
    launchers = {
        "horovod": ["horovodrun", "--gloo", "-np", str(job.replicas), python],
        "mpi": [*mpirun_here(job.replicas), python],
    }
    local = [python, "-m", "hvdtrain", "launch", "local", "-n", str(job.replicas), "--", python]
    by = launchers.get(row.strategy, local) if row.over == "ranks" else [python]
    decided = [f"--{name.replace('_', '-')}={value}" for name, value in settings(job, options, data).items()]
    devices = ["--devices", str(job.replicas)] if row.over == "devices" else []
    places = ["--runs", str(options.output), "--name", job.name, "--log-every", "10", "--profile", "10", "--quiet"]
    return [*by, "-m", "hvdtrain", "train", "--recipe", "book", *decided, *places, *devices]


def environment() -> dict[str, str]:
    """One thread a rank or device, and programs found beside this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_LOG_LEVEL": "error"}
    return {"OMP_NUM_THREADS": "1", **quiet, **os.environ, "PATH": path}


class Bench:
    """Runs jobs one after the other, and shows how far it is."""

    def __init__(self, options: Options, data: str) -> None:
        self._options, self._data = options, data
        self._process: subprocess.Popen[str] | None = None

    def run(self, jobs: list[Job]) -> list[str]:
        """Run all jobs; the reasons of those that failed."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        failed, began = [], time.monotonic()
        try:
            for done, job in enumerate(jobs):
                left = (time.monotonic() - began) / done * (len(jobs) - done) if done else None
                told = f"; {left // 60:.0f}:{left % 60:02.0f} min left" if left else ""
                print(f"[{done + 1}/{len(jobs)}] {job.row.name}, {job.replicas} replica(s), repeat {job.repeat + 1}"
                      f"/{self._options.repeats}{told}", file=sys.stderr, flush=True)  # fmt: skip
                reason = self._one(job)
                if reason:
                    failed.append(f"{job.name}: {reason}")
                    print(f"    failed: {reason}", file=sys.stderr, flush=True)
        finally:
            self._end()
        return failed

    def _one(self, job: Job) -> str:
        """Run a job; why it failed, or nothing."""
        shutil.rmtree(self._options.output / job.name, ignore_errors=True)  # of a bench that was stopped
        self._options.output.mkdir(parents=True, exist_ok=True)
        log = self._options.output / f"{job.name}.log"
        with open(log, "w") as file:
            self._process = subprocess.Popen(
                words(job, self._options, self._data), env=environment(), text=True, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = self._process.wait(JOB_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._end()
                return f"no end after {JOB_TIMEOUT_S} s; its output is in {log}"
        if status == 0:
            log.unlink()
            return ""
        told = [line for line in log.read_text().splitlines() if "hvdtrain: rank" in line]
        return f"{told[0] if told else f'exit status {status}'} (its output is in {log})"

    def _end(self) -> None:
        """End the job that runs: its launcher ends the ranks, and after a while the kernel does."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
