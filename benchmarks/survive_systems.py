"""One lost rank in a job of each system that goes on without it or starts again, measured for survive.py."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from faults.surviving_job import RANKS, SHARDS, SUPPORT
from support.jobs import BIN, finish, start, wait_for
from support.same_bits import weights_hash

OTHERS = Path(__file__).with_name("survive_by_others.py")
STEPS, STEP_S = 60, 0.1
FIRST, LAST = 20, 45
"""The rank is killed after a step between these."""
EVERY = 25
"""Steps from a checkpoint to the next one with --restarts."""
LIMIT_S = 240.0


class Step(NamedTuple):
    """A step that has ended."""

    number: int
    time: float
    start: int
    """Which start of the ranks, or which ranks, it was made by."""


class System(NamedTuple):
    """How a job is started, and what it leaves in its folder."""

    command: Callable[[Path], list[str]]
    steps: Callable[[Path], list[Step]]
    parameters: Callable[[Path], str]


def measure_system(name: str, folder: Path, count: int, generator: random.Random) -> dict[str, Any]:
    """Lose a rank in so many jobs, and none in one; the same ranks at the same steps for each system."""
    system = SYSTEMS[name]
    undisturbed = _run(system, folder / "undisturbed", None)
    to_next_step, done_again, equal = [], [], 0
    for number in range(count):
        at, rank = generator.randrange(FIRST, LAST), generator.randrange(RANKS)
        place = folder / str(number)
        killed = _run(system, place, (at, rank))
        steps = system.steps(place)
        before = [step for step in steps if step.time <= killed]
        after = [step for step in steps if step.start > before[-1].start]
        to_next_step.append(after[0].time - killed)
        done_again.append(max(step.number for step in steps if step.start == before[-1].start) - after[0].number + 1)
        equal += system.parameters(place) == system.parameters(folder / "undisturbed")
    assert undisturbed
    result = "equal" if equal == count else "differs" if not equal else f"equal in {equal} of {count}"
    return {"to_next_step_s": to_next_step, "done_again": done_again, "result": result}


def _run(system: System, folder: Path, kill: tuple[int, int] | None) -> float:
    """Run a job to its end, with a kill of a rank after a step, if any; when that was, or the job ended."""
    folder.mkdir(parents=True)
    variables = {"HVDTRAIN_TEST_FOLDER": str(folder), "HVDTRAIN_TEST_STEP_S": str(STEP_S), "RANKS": str(RANKS)}
    with open(folder / "output", "w") as output:
        process = start(["bash", "-c", 'exec "$@" > output 2>&1', "bash", *system.command(folder)], folder, **variables)
        text = lambda: (folder / "output").read_text()[-6000:]  # noqa: E731
        try:
            if kill:
                at, rank = kill
                wait_for(lambda: process.poll() is not None or _last(system, folder) >= at, LIMIT_S, text)
                os.kill(int((folder / "pids" / str(rank)).read_text()), signal.SIGKILL)
            when = time.time()
            status, _ = finish(process, LIMIT_S)
            if status:
                sys.exit(f"exit status {status}: {text()}")
            return when
        finally:
            output.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _last(system: System, folder: Path) -> int:
    return max((step.number for step in system.steps(folder)), default=0)


def _records(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that is being written."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


# hvdtrain.


def _hvdtrain(*launch: str) -> Callable[[Path], list[str]]:
    program = [sys.executable, str(SUPPORT / "killable.py"), "torch", "--data", "digits", "--lr", "0.02"]
    program += ["--max-steps", str(STEPS), "--log-every", "1", "--checkpoint-every", str(EVERY), "--device", "cpu"]
    program += ["--name", "run", "--strategy", "horovod", "--shards", str(SHARDS)]
    command = [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(RANKS), *launch, "--", *program]
    return lambda _: command


def _recorded_steps(folder: Path) -> list[Step]:
    """An attempt, or a membership without a lost rank, is a start."""
    run = folder / "runs" / "run"
    attempts = run / "attempts.json"  # written when an attempt has ended
    began = [attempt["began"] for attempt in json.loads(attempts.read_text())] if attempts.exists() else []
    changes, steps = 0, []
    for record in _records(run / "metrics.jsonl"):
        if record["kind"] == "members":
            changes += bool(record["lost"])
        elif record["kind"] == "train":
            starts = sum(one <= record["time"] for one in began)
            steps.append(Step(record["step"], record["time"], changes + starts))
    return steps


def _parameters(folder: Path) -> str:
    return weights_hash(folder / "runs" / "run")


# Others.


def _torchrun(folder: Path) -> list[str]:
    """By default, the ranks that are started again find the addresses of the former ones, and fail (PyTorch 2.13)."""
    own_store = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    command = [*own_store, str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "9"]
    return [*command, str(OTHERS), "ddp", str(STEPS), str(STEP_S), str(folder)]


def _elastic(folder: Path) -> list[str]:
    """Two hosts to Horovod, which uses no host any more on which a rank was lost."""
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho localhost:{RANKS // 2}\necho 127.0.0.1:{RANKS // 2}\n")
    script.chmod(0o755)
    command = [
        str(BIN / "horovodrun"),
        "--gloo",
        "-np",
        str(RANKS),
        "--min-np",
        str(RANKS // 2),
        "--max-np",
        str(RANKS),
    ]
    command += ["--host-discovery-script", str(script), "--network-interfaces", "lo"]
    return [*command, sys.executable, str(OTHERS), "elastic", str(STEPS), str(STEP_S), str(folder)]


def _written_steps(folder: Path) -> list[Step]:
    records = _records(folder / "steps.jsonl")
    return [Step(record["step"], record["time"], record["start"]) for record in records]


def _written_parameters(folder: Path) -> str:
    return (folder / "parameters").read_text()


SYSTEMS = {
    "launch --survive": System(_hvdtrain("--survive"), _recorded_steps, _parameters),
    "launch --restarts 3": System(_hvdtrain("--restarts", "3"), _recorded_steps, _parameters),
    "torchrun --max-restarts": System(_torchrun, _written_steps, _written_parameters),
    "Horovod Elastic": System(_elastic, _written_steps, _written_parameters),
}
