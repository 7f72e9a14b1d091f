"""Starting jobs in tests as users start them, and reading what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.interfaces import Checkpoint
from hvdtrain.runs import checkpoints

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).with_name("programs.py")
FRAMEWORKS = ("torch", "mxnet", "tensorflow")


def real_data_folder() -> Path | None:
    """Where real data sets lie, if there are any."""
    folder = os.environ.get("HVDTRAIN_DATA")
    return Path(folder) if folder and Path(folder, "fashion-mnist").is_dir() else None


def launcher(name: str, np: int) -> list[str]:
    """The words that start `np` processes: `alone`, `local` (hvdtrain's own), `gloo`, `mpi` (both horovodrun), `mpirun`
    or `torchrun`."""
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return {
        "alone": [],
        "local": ["python", "-m", "hvdtrain", "launch", "local", "-n", str(np), "--"],
        "torchrun": ["torchrun", "--standalone", "--nproc-per-node", str(np), "--no-python"],
        "gloo": ["horovodrun", "--gloo", "-np", str(np)],
        "mpi": ["horovodrun", "--mpi", "-np", str(np), *(["--mpi-args=--allow-run-as-root"] if as_root else [])],
        "mpirun": ["mpirun", *as_root, "-np", str(np), "--oversubscribe", "--bind-to", "none",
                   "--mca", "mpi_yield_when_idle", "1"],
    }[name]  # fmt: skip


def start(words: list[str], folder: Path, stderr: int = subprocess.STDOUT, **environment: str) -> subprocess.Popen[str]:
    """Start a program in `folder` as from a shell in which the virtual environment is active."""
    own = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **environment,
    }
    return subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, **own},
        text=True,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 180) -> tuple[int, str]:
    """Exit status and output."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        pytest.fail(f"no end after {timeout_s} s; output:\n{output[-4000:]}")
    return process.returncode, output


def run(words: list[str], folder: Path, timeout_s: float = 180, **environment: str) -> tuple[int, str]:
    """Exit status and output of a program that runs in `folder`."""
    return finish(start(words, folder, **environment), timeout_s)


def wait_for(
    condition: Callable[[], object],
    timeout_s: float,
    told: Callable[[], object] = lambda: "",
    end: type[BaseException] = pytest.fail.Exception,
) -> None:
    """Wait until it is so; raises `end` with what `told` says where it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise end(f"not within {timeout_s} s; {told()}")
        time.sleep(0.02)


def wait_for_a_step(run_folder: Path) -> None:
    """Until training is under way: rank 0 has written of a step."""
    metrics = run_folder / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, 90)


def running(pid: int) -> bool:
    """Whether that process still runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def train(folder: Path, framework: str, *options: str, by: str = "alone", np: int = 1, **environment: str) -> Path:
    """Train through the framework's door; the run's folder, named as `--name` says or `run`."""
    name = options[options.index("--name") + 1] if "--name" in options else "run"
    named = () if "--name" in options or "--resume" in options else ("--name", name)
    module = f"hvdtrain.{framework}_lenet"
    status, output = run([*launcher(by, np), "python", "-m", module, *named, *options], folder, **environment)
    assert status == 0, output[-6000:]
    return folder / "runs" / name


def train_several(folder: Path, framework: str, runs: dict[str, tuple[str, ...]], by: str, np: int) -> Path:
    """Train by each of these options in one job, which starts the framework once; the folder of the runs, by name."""
    words = [word for name, options in runs.items() for word in ("--then", *options, "--name", name)][1:]
    job = ["python", str(PROGRAMS), "several", framework]
    status, output = run([*launcher(by, np), *job, *words], folder, timeout_s=300)
    assert status == 0, output[-6000:]
    return folder / "runs"


def newest(run_folder: Path) -> Checkpoint:
    """The newest checkpoint of a run."""
    return checkpoints.newest(run_folder)[1]


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of any parameter."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
