"""Starts jobs as users start them, and reads what they write."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.runs import checkpoints, metrics
from support.environment import of_jobs
from support.stack import named_by, require

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).with_name("programs.py")
Words = Sequence[str]
Key = TypeVar("Key")
Ended = tuple[int, str]
"""Exit status and output."""


def real_data_folder() -> Path | None:
    """The folder with the published data sets, if there is one."""
    folder = os.environ.get("HVDTRAIN_DATA")
    return Path(folder) if folder and Path(folder, "fashion-mnist").is_dir() else None


def launch(by: str, ranks: int, *options: str) -> list[str]:
    """The command line of hvdtrain's launcher, without the program."""
    return ["python", "-m", "hvdtrain", "launch", by, "-n", str(ranks), *options, "--"]


def launcher(name: str, np: int) -> list[str]:
    """The command line that starts `np` processes, without the program.

    name: `alone`, `local` (hvdtrain's launcher), `gloo` or `mpi` (both horovodrun), `mpirun` or `torchrun`.
    """
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return {
        "alone": [],
        "local": launch("local", np),
        # As --standalone, which names localhost.
        "torchrun": ["torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
                     "--nproc-per-node", str(np), "--no-python"],
        "gloo": ["horovodrun", "--gloo", "-np", str(np)],
        "mpi": ["horovodrun", "--mpi", "-np", str(np), *(["--mpi-args=--allow-run-as-root"] if as_root else [])],
        "mpirun": ["mpirun", *as_root, "-np", str(np), "--oversubscribe", "--bind-to", "none",
                   "--mca", "mpi_yield_when_idle", "1"],
    }[name]  # fmt: skip


MARK = "STARTED_BY_TESTS"
"""A variable of what `start` starts, and of what that starts, wherever on this machine: an own value for each."""
STARTED: list[tuple[subprocess.Popen[str], str]] = []
"""What `start` has started, and its mark."""
PLACES: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
"""Of each place in which jobs also start processes that do not descend from them, as hosts do for ssh, and Slurm: a
context at whose end those end that were started in it."""
_numbers = itertools.count()


def start(
    command: list[str], folder: Path, stderr: int = subprocess.STDOUT, **environment: str
) -> subprocess.Popen[str]:
    """Start a command in `folder` as from a shell in which the virtual environment is active.

    It has the environment with which the tests began, and these variables. Skips the test if the command names a
    framework that is not installed.
    """
    require(*named_by(command))
    mark = f"{os.getpid()}.{next(_numbers)}"
    variables = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        MARK: mark,
        **environment,
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=of_jobs(**variables),
        text=True,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    STARTED.append((process, mark))
    return process


@contextlib.contextmanager
def ending_started() -> Iterator[None]:
    """End what is started inside and still runs then, as that of a test that fails.

    That is a command and all that it has started, also agents and ranks of a job, on all hosts that tests have made.
    """
    count = len(STARTED)
    with contextlib.ExitStack() as stack:
        for place in PLACES:
            stack.enter_context(place())
        try:
            yield
        finally:
            started = STARTED[count:]
            del STARTED[count:]
            _end(started)


def _end(started: list[tuple[subprocess.Popen[str], str]]) -> None:
    """First as a user would, so that launchers end their ranks."""
    left = [process for process, _ in started if process.poll() is None]
    for process in left:
        os.killpg(process.pid, signal.SIGTERM)
    for process in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
    if started:
        marks = {f"{MARK}={mark}".encode() for _, mark in started}
        end_all(lambda: [pid for pid in pids() if marks & {*read_of_process(pid, "environ")}])
    for process in left:
        process.communicate()


def end_all(find: Callable[[], Iterable[int]], limit_s: float = 10) -> None:
    """Kill processes until none is found: one may start others until it ends."""
    deadline = time.monotonic() + limit_s
    while (found := [*find()]) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def pids() -> list[int]:
    """All processes of this machine, also those of hosts that tests have made on it."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def read_of_process(pid: int, what: str) -> list[bytes]:
    """The parts of a file of a process; none if it has ended, or is of another user."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def finish(process: subprocess.Popen[str], timeout_s: float = 180) -> tuple[int, str]:
    """Exit status and output of a process that ends by itself; fails the test if it does not."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _end([(process, mark) for known, mark in STARTED if known is process])
        output, _ = process.communicate()
        pytest.fail(f"still running after {timeout_s} s; output:\n{output[-4000:]}")
    return process.returncode, output


class PrintedJob:
    """A command whose output goes to a file of its folder, and is waited for."""

    def __init__(self, folder: Path, command: list[str], begin: Callable[..., subprocess.Popen[str]] = start) -> None:
        self._folder, self._path = folder, folder / "output"
        self.process = begin(["sh", "-c", 'exec "$@" > output 2>&1', "sh", *command], folder)

    @property
    def output(self) -> str:
        return self._path.read_text() if self._path.exists() else ""

    def until(self, *lines: str, seconds: float = 30) -> None:
        """Wait until each of these regular expressions is at the beginning of a line."""
        for line in lines:
            wait_for(lambda line=line: re.search(f"^{line}", self.output, re.M), seconds, lambda: self.output)

    def end(self) -> int:
        """Let programs end that look for a file `end`; the exit status."""
        (self._folder / "end").touch()
        return self.process.wait(30)


def run(command: list[str], folder: Path, timeout_s: float = 180, **environment: str) -> tuple[int, str]:
    """Exit status and output of a command in `folder`."""
    return finish(start(command, folder, **environment), timeout_s)


def succeed(command: list[str], folder: Path, timeout_s: float = 180, **environment: str) -> str:
    """The output of a command in `folder` that must end with status 0."""
    status, output = run(command, folder, timeout_s, **environment)
    assert status == 0, output[-6000:]
    return output


def wait_for(
    condition: Callable[[], object],
    timeout_s: float,
    describe: Callable[[], object] = lambda: "",
    error: type[BaseException] = pytest.fail.Exception,
    every_s: float = 0.02,
) -> None:
    """Wait until the condition is true; after `timeout_s` raise `error` with the text that `describe` returns.

    every_s: longer for a condition that starts a process.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise error(f"not within {timeout_s} s; {describe()}")
        time.sleep(every_s)


def wait_for_a_step(run_folder: Path) -> None:
    """Wait until rank 0 has recorded a step."""
    metrics = run_folder / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, 90)


def pids_of_ranks(run_folder: Path, count: int) -> list[int]:
    """Process ids of a job's ranks, ordered by rank, once rank 0 has recorded a step."""
    logs = [run_folder / "logs" / f"rank-{rank}.log" for rank in range(count)]
    wait_for_a_step(run_folder)
    assert all(log.exists() for log in logs)
    owners = {}
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = path.resolve()
        except OSError:
            continue
        if target in logs:
            owners[target] = int(path.parts[2])
    return [owners[log] for log in logs]


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def train(folder: Path, framework: str, *options: str, by: str = "alone", np: int = 1, **environment: str) -> Path:
    """Train with the framework's entry point; returns the run's folder, named `run` without `--name`."""
    name = options[options.index("--name") + 1] if "--name" in options else "run"
    named = () if "--name" in options or "--resume" in options else ("--name", name)
    module = f"hvdtrain.{framework}_lenet"
    succeed([*launcher(by, np), "python", "-m", module, *named, *options], folder, **environment)
    return folder / "runs" / name


def several(framework: str, trainings: Iterable[Words], by: str, np: int) -> list[str]:
    """The command line of a job that trains with each of these options, one after the other."""
    options = [word for given in trainings for word in ("--then", *given)][1:]
    return [*launcher(by, np), "python", str(PROGRAMS), "several", framework, *options]


def try_each(parts: Mapping[Key, Words], job_of: Callable[[list[Words]], list[str]], folder: Path) -> dict[Key, Ended]:
    """Run the job that `job_of` makes of the parts; exit status and output of that of each part.

    Where a part fails or hangs, those before it stand, and another job goes on with those after it. Rank 0 prints
    which part begins (`parts` of programs.py).
    """
    ended: dict[Key, Ended] = {}
    while left := [key for key in parts if key not in ended]:
        try:
            status, output = run(job_of([parts[key] for key in left]), folder, timeout_s=600)
        except pytest.fail.Exception as error:
            status, output = 1, str(error)
        begun = re.findall(r"part (\d+) of the job begins", output)
        good = int([1, *begun][-1]) - 1 if status else len(left)
        ended |= dict.fromkeys(left[:good], (0, output))
        ended |= dict.fromkeys(left[good : good + 1] if begun else left, (status, output))
    return ended


@dataclass(frozen=True)
class Runs:
    """The folder of the runs of a job. A test that asks for a run of the job that failed fails."""

    path: Path
    ended: dict[str, Ended]

    def __truediv__(self, name: str) -> Path:
        self.output(name)
        return self.path / name

    def output(self, name: str) -> str:
        """The output of the job that made a run."""
        status, output = self.ended.get(name, (0, ""))
        assert status == 0, f"{name} failed:\n{output[-6000:]}"
        return output


def train_several(folder: Path, framework: str, runs: dict[str, tuple[str, ...]], by: str, np: int) -> Runs:
    """Train with each of the options, by name, in one job, which starts the framework once."""
    named = {name: (*given, "--name", name) for name, given in runs.items()}
    return Runs(folder / "runs", try_each(named, lambda some: several(framework, some, by, np), folder))


def newest(run_folder: Path) -> Checkpoint:
    """The newest checkpoint of a run."""
    return checkpoints.newest(run_folder)[1]


def result(run_folder: Path) -> dict[str, Any]:
    """What a run wrote in the end."""
    return json.loads((run_folder / "result.json").read_text())


def records(run_folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """What a run recorded of these kinds, in its order."""
    return [record for record in metrics.read(run_folder / metrics.NAME) if record["kind"] in kinds]


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of any parameter, as a share of the largest value of its array where that is above 1."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max() / max(1, np.abs(other[name]).max())) for name in one)
