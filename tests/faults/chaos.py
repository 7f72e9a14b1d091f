"""Faults in real jobs, and what becomes of them: python tests/faults/chaos.py [--minutes M] [--seed S] [--only FAULT ...]

Each case starts a job of two ranks, does it some harm at a moment drawn from the seed, and looks whether that was
noticed and said rightly, and training came to its end as if nothing had happened. One that does not ends the suite.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support import elastic
from support.cluster import HOST_NEEDS, SLURM_NEEDS, Hosts, Slurm, need
from support.jobs import PROGRAMS, ROOT, start, wait_for

from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import checkpoints, metrics

TESTS = Path(__file__).parent
STEPS, EVERY = 40, 5
OPTIONS = ["--max-steps", str(STEPS), "--lr", "0.02", "--checkpoint-every", str(EVERY), "--log-every", "1"]
OPTIONS += ["--device", "cpu", "--name", "run", "--auto-resume", "--hang-timeout", "5"]
HANG_S = 5.0
MARK = "HVDTRAIN_TEST_CASE"
"""Variable by which all processes of a case are known."""
STEP_S = "HVDTRAIN_TEST_STEP_S"


class Wrong(AssertionError):
    """A case that did not come out as promised."""


@dataclass
class Row:
    """What became of a case; seconds and steps, None where there is no such thing."""

    fault: str
    launcher: str
    framework: str
    detected_s: float | None = None
    recovered_s: float | None = None
    """From the fault to the next step, without the time that the first start took to its first step."""
    lost: int | None = None
    state: str = "same weights"
    ran: bool = True

    def line(self) -> str:
        def shown(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        figures = (shown(self.detected_s, ".1f"), shown(self.recovered_s, ".1f"), shown(self.lost, "d"))
        return f"| {' | '.join((self.fault, self.launcher, self.framework, *figures, self.state))} |"


HEAD = """\
| fault | launcher | framework | detected after s | recovered after s | steps lost | afterwards |
| --- | --- | --- | --- | --- | --- | --- |"""


@dataclass
class Job:
    """A job of two ranks that is watched while it runs."""

    folder: Path
    launcher: str
    framework: str
    kind: str = "slowly"
    words: list[str] = field(default_factory=list)
    """Of the launcher, beside the usual ones."""
    options: list[str] = field(default_factory=list)
    cluster: Slurm | None = None
    """Where it runs, if not on this machine itself: rank 0 on host1, rank 1 on host2."""

    def __post_init__(self) -> None:
        self.run = self.folder / "runs" / "run"
        self.lines: list[tuple[float, str]] = []
        launch = [sys.executable, "-m", "hvdtrain", "launch", self.launcher, "-n", "2", *self.words, "--"]
        program = [sys.executable, str(PROGRAMS), self.kind, self.framework, *OPTIONS, *self.options]
        self.began = time.time()
        self.process = self._start([*launch, *program])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, words: list[str]) -> subprocess.Popen[str]:
        own = {MARK: str(self.folder), STEP_S: "0.1", "PYTHONPATH": str(ROOT)}
        if not self.cluster:
            return start(words, self.folder, **own)
        if self.launcher != "srun":
            return self.cluster.hosts.start("host1", words, self.folder, **own)
        return self.cluster.start(["salloc", "--quiet", "--nodes=2", *words], self.folder, **own)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append((time.time(), line.rstrip()))

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def steps(self) -> dict[int, float]:
        """Steps recorded so far, by the latest attempt."""
        path = self.run / "metrics.jsonl"
        return (
            {one["step"]: one["loss"] for one in metrics.read(path) if one["kind"] == "train"} if path.exists() else {}
        )

    def wait_for_step(self, step: int) -> int:
        """Until that many are made; the last one."""
        wait(lambda: max(self.steps(), default=0) >= step, 120, self)
        return max(self.steps())

    def pid(self, rank: int) -> int:
        if self.cluster:  # whose hosts count processes in their own way
            on_host = self.cluster.hosts.processes(f"host{rank + 1}")
            return next(pid for pid, line in on_host.items() if re.match(r"\S*python \S*jobs\.py", line))
        return int(json.loads((self.run / "heartbeats" / f"rank-{rank}.json").read_text())["pid"])

    def attempts(self) -> list[dict[str, Any]]:
        """The record of a job with restarts, once an attempt has ended."""
        return list(json.loads((self.run / "attempts.json").read_text()))

    def disk(self, word: str) -> None:
        """Let the disk answer so, in jobs of that kind; an empty word mends it."""
        if word:
            (self.folder / "word").write_text(word)
            (self.folder / "word").rename(self.folder / "disk")
        else:
            (self.folder / "disk").unlink()

    def said(self, text: str, since: float, within_s: float) -> float:
        """When a line with this text came."""

        def when() -> float | None:
            return next((at for at, line in self.lines if at >= since and text in line), None)

        wait(lambda: when() is not None, within_s, self, f"{text!r} within {within_s} s")
        at = when()
        assert at
        return at

    def end(self, status: int, within_s: float = 180, left_s: float = 3) -> float:
        """When it ended, with that status; nothing may be left of it after some seconds more."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise Wrong(f"no end within {within_s} s:\n{self.output}") from None
        ended = time.time()
        self._reader.join(5)
        if self.process.returncode != status:
            raise Wrong(f"exit status {self.process.returncode} instead of {status}:\n{self.output}")
        wait(lambda: not left(self.folder), left_s, self, "no process left behind")
        return ended


def wait(condition: Callable[[], object], within_s: float, job: Job, what: str = "a step") -> None:
    wait_for(condition, within_s, lambda: f"{what}:\n{job.output}", Wrong)


def left(folder: Path) -> list[psutil.Process]:
    """Processes of the cases below a folder that still run, on all hosts that this machine makes."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            case = one.environ().get(MARK)
            if case and Path(case).is_relative_to(folder) and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


class Suite:
    """The cases, the place where they run, and what undisturbed jobs came to."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self._numbers = itertools.count()
        self._weights: dict[str, dict[str, np.ndarray]] = {}
        self._cluster: Slurm | None = None
        self.down = contextlib.ExitStack()
        """Takes down what was made for the cases."""

    def cluster(self) -> Slurm:
        """Three hosts, two of them Slurm's nodes. Raises pytest.skip.Exception where this machine cannot make them."""
        if not self._cluster:
            need((*HOST_NEEDS, *SLURM_NEEDS), "iproute2 util-linux openssh-server openssh-client slurm-wlm munge")
            hosts = Hosts(self.place(), 3)
            self.down.callback(hosts.down)
            hosts.up()
            slurm = Slurm(hosts, self.place())
            slurm.up()
            self._cluster = slurm
        return self._cluster

    def place(self) -> Path:
        made = self.folder / f"case-{next(self._numbers)}"
        made.mkdir()
        return made

    def same(self, job: Job) -> None:
        """Bit for bit the weights of a job that nothing happened to."""
        if job.framework not in self._weights:
            straight = Job(self.place(), "local", job.framework)
            straight.end(0)
            self._weights[job.framework] = checkpoints.newest(straight.run)[1].weights
        for name, value in checkpoints.newest(job.run)[1].weights.items():
            if not np.array_equal(value, self._weights[job.framework][name]):
                raise Wrong(f"{name} is not as in an undisturbed job:\n{job.output}")

    def goes_on(self, job: Job) -> Job:
        """Started by the same words once more, it ends as if nothing had happened; that second job."""
        again = Job(job.folder, job.launcher, job.framework)
        again.end(0)
        self.same(again)
        return again

    # Faults. Each takes the launcher and the framework, and returns what became of it.

    def kill(self, launcher: str, framework: str) -> Row:
        """kill -9 of a rank."""
        return self._restarted(launcher, framework, signal.SIGKILL, "was killed by SIGKILL", 2.0)

    def freeze(self, launcher: str, framework: str) -> Row:
        """SIGSTOP of a rank: its heartbeat stops, and the others wait."""
        return self._restarted(launcher, framework, signal.SIGSTOP, "no heartbeat of rank {rank} ", HANG_S + 5)

    def _restarted(self, launcher: str, framework: str, number: signal.Signals, text: str, within_s: float) -> Row:
        words, cluster = ["--restarts", "2"], self.cluster() if launcher == "srun" else None
        if cluster:
            words += ["--nodes", "2"]
        job = Job(self.place(), launcher, framework, words=words, cluster=cluster)
        job.wait_for_step(1)
        first_step = time.time() - job.began
        at, rank = job.wait_for_step(self.random.randrange(2, STEPS - 8)), self.random.randrange(2)
        os.kill(job.pid(rank), number)
        harmed = time.time()
        detected = job.said(text.format(rank=rank), harmed, within_s + 20)
        if f"rank {rank}" not in next(line for when, line in job.lines if when == detected):
            raise Wrong(f"not rank {rank} was named:\n{job.output}")
        job.said("rank 0 of 2 starts with parameters", detected, 60)
        seen = len((job.run / "metrics.jsonl").read_text())
        wait(lambda: len((job.run / "metrics.jsonl").read_text()) > seen, 60, job)
        recovered = time.time() - harmed - first_step
        job.end(0)
        self.same(job)
        second = job.attempts()[1]
        lost = at - max(second["checkpoint"], 0)
        if lost > EVERY + 3:  # some steps are made between reading the step and the blow
            raise Wrong(f"{lost} steps were lost:\n{job.output}")
        check(detected - harmed, within_s, "it was detected", job)
        check(recovered, within_s + 10, "it trained again", job)
        return Row(
            f"{number.name} of a rank", launcher, framework, detected - harmed, max(recovered, 0.0), max(lost, 0)
        )

    def sleep(self, launcher: str, framework: str) -> Row:
        """A rank falls asleep in Python, once."""
        job = Job(self.place(), launcher, framework, "sleep", words=["--restarts", "2"])
        wait((job.folder / "slept").exists, 120, job, "asleep")
        harmed = time.time()
        detected = job.said("rank 1 (process ", harmed, HANG_S + 20)
        job.end(0)
        self.same(job)
        check(detected - harmed, HANG_S + 5, "it was detected", job)
        return Row("a rank asleep in Python", launcher, framework, detected - harmed)

    def cable(self, launcher: str, framework: str) -> Row:
        """The cable of a host is pulled: a third host takes its rank."""
        cluster = self.cluster()
        where = ["--interface", "eth0", "-H", "host1:1,host2:1,host3:1", "--restarts", "2"]
        job = Job(self.place(), launcher, framework, words=where, cluster=cluster)
        at = job.wait_for_step(self.random.randrange(2, STEPS - 8))
        cluster.hosts.cable("host2", plugged=False)
        harmed = time.time()
        try:
            detected = job.said("ending the others", harmed, HANG_S + 20)
            wait((job.run / "attempts.json").exists, 20, job, "ended")
            ended = time.time()
            job.end(0, left_s=20)
        finally:
            cluster.hosts.cable("host2", plugged=True)
        self.same(job)
        second = job.attempts()[1]
        if second["hosts"] != ["host1", "host3"]:
            raise Wrong(f"it went on on {second['hosts']}:\n{job.output}")
        check(ended - harmed, HANG_S + 5, f"it was detected after {detected - harmed:.1f} s and ended", job)
        lost = at - max(second["checkpoint"], 0)
        return Row("a host's cable is pulled", f"{launcher}, ssh", framework, detected - harmed, None, max(lost, 0))

    def elastic(self, launcher: str, framework: str) -> Row:
        """In an elastic job a rank is killed and a host added, or a host removed; each sample is seen once."""
        folder = self.place()
        job = elastic.Job(folder, framework, "localhost:1 127.0.0.1:1", **{MARK: str(folder)})
        what, happens = self.random.choice(
            [
                ("a rank is killed, a host added", job.lose_a_rank_and_gain_a_host),
                ("a host is removed", job.lose_a_host),
            ]
        )
        with job:
            happens()
            job.end()
        wait_for(lambda: not left(folder), 3, job.log, Wrong)
        return Row(what, f"{launcher} --elastic", framework, state="as many samples, weights within 1e-4")

    def ask(self, launcher: str, framework: str) -> Row:
        """A signal to the launcher or to a rank, or a file: a checkpoint, status 75, and the same words go on."""
        folder = self.place()
        job = Job(folder, launcher, framework)
        job.wait_for_step(self.random.randrange(2, STEPS - 8))
        name = self.random.choice(["SIGTERM", "SIGUSR1", "STOP"])
        whom = self.random.choice(["launcher", "rank 0", "rank 1"])
        if name == "STOP":
            whom = "run's folder"
            (job.run / "STOP").touch()
        else:
            os.kill(job.process.pid if whom == "launcher" else job.pid(int(whom[-1])), getattr(signal, name))
        asked = time.time()
        at = job.said("was asked to stop by", asked, 30)
        job.end(75)
        self.goes_on(job)
        return Row(f"{name} to the {whom}", launcher, framework, at - asked, None, 0)

    def flip(self, launcher: str, framework: str) -> Row:
        """A bit of the newest checkpoint: the one before it is taken."""
        folder = self.place()
        job = Job(folder, launcher, framework)
        job.wait_for_step(3 * EVERY)
        os.kill(job.process.pid, signal.SIGTERM)
        job.end(75)
        newest = sorted((job.run / "checkpoints").glob("step-*"))[-1]
        victim = newest / self.random.choice(checkpoints.FILES)
        data = bytearray(victim.read_bytes())
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        victim.write_bytes(data)
        self.goes_on(job).said(f"damaged checkpoint: runs/run/checkpoints/{newest.name}", 0, 1)
        return Row(f"a bit of {victim.name}", launcher, framework, None, None, None)

    def full(self, launcher: str, framework: str) -> Row:
        """A disk that is full after so many KB: the last checkpoint is whole, and with more room the job goes on."""
        folder = self.place()
        if not can_mount(folder):
            pytest.skip("no small disk can be mounted here")
        (folder / "runs").mkdir()
        size = self.random.randrange(100, 3600)
        with small_disk(folder / "runs", size) as grow:
            job = Job(folder, launcher, framework)
            job.end(1 if "cannot be written" in self._last_words(job) else 2)
            if "No space left on device" not in job.output or "Traceback" in job.output:
                raise Wrong(job.output)
            whole = [checkpoints.load(path) for path in (job.run / "checkpoints").glob("step-*")]
            grow()
            self.goes_on(job)
            return Row(f"a disk of {size} KB is full", launcher, framework, None, None, None,
                       f"{len(whole)} whole checkpoint(s), then same weights")  # fmt: skip

    def disk(self, launcher: str, framework: str) -> Row:
        """A disk that takes nothing more, for a reason of its own: as with a full one."""
        job = Job(self.place(), launcher, framework, "disk")
        job.wait_for_step(self.random.randrange(EVERY + 1, STEPS - 8))
        word = self.random.choice(["EROFS", "EDQUOT", "EIO"])
        job.disk(word)
        harmed = time.time()
        job.end(1)
        said = os.strerror(getattr(errno, word))
        detected = job.said(f"cannot be written ({said}); the checkpoints before it are whole", harmed, 1)
        whole = [checkpoints.load(path) for path in (job.run / "checkpoints").glob("step-*")]
        job.disk("")
        self.goes_on(job)
        return Row(f"a disk says: {said}", launcher, framework, detected - harmed, None, None,
                   f"{len(whole)} whole checkpoint(s), then same weights")  # fmt: skip

    def stall(self, launcher: str, framework: str) -> Row:
        """A folder that no longer answers, for a while."""
        job = Job(self.place(), launcher, framework, "disk", words=["--restarts", "2"])
        job.wait_for_step(self.random.randrange(2, STEPS - 8))
        job.disk("600")
        harmed = time.time()
        detected = job.said("and the run's folder runs/run does not answer", harmed, HANG_S + 20)
        job.disk("")
        job.end(0)
        self.same(job)
        check(detected - harmed, HANG_S + 5, "it was detected", job)
        return Row("the run's folder does not answer", launcher, framework, detected - harmed)

    def slow(self, launcher: str, framework: str) -> Row:
        """A folder that takes a fifth of a second for everything: nothing but time is lost."""
        job = Job(self.place(), launcher, framework, "disk", words=["--restarts", "2"])
        job.wait_for_step(self.random.randrange(2, STEPS - 8))
        job.disk("0.2")
        job.end(0)
        self.same(job)
        if len(job.attempts()) > 1:
            raise Wrong(f"it was started again:\n{job.output}")
        return Row("the run's folder is slow", launcher, framework)

    def gone(self, launcher: str, framework: str) -> Row:
        """The run's folder is away: the job does not begin anew in its place, and goes on when it is back."""
        job = Job(self.place(), launcher, framework, words=["--restarts", "2"])
        job.wait_for_step(self.random.randrange(EVERY + 1, STEPS - 8))
        aside = job.folder / "aside"
        job.run.rename(aside)
        harmed = time.time()
        job.end(2)
        detected = job.said(", as runs/run is gone: bring it back", harmed, 1)
        if job.run.exists():
            raise Wrong(f"it began anew:\n{job.output}")
        aside.rename(job.run)
        self.goes_on(job)
        return Row("the run's folder is gone", launcher, framework, detected - harmed)

    @staticmethod
    def _last_words(job: Job) -> str:
        job.process.wait(120)
        time.sleep(0.5)
        return job.output

    def nan(self, launcher: str, framework: str) -> Row:
        """A loss that is not finite on one rank."""
        job = Job(self.place(), launcher, framework, "nan")
        job.end(1)
        job.said("rank 1: loss is not finite at step 5, in training images", 0, 1)
        return Row("NaN on a rank", launcher, framework, None, None, None, "ended, rank, step and rows named")

    def drift(self, launcher: str, framework: str) -> Row:
        """A rank whose memory changes."""
        job = Job(self.place(), launcher, framework, "drift", options=["--check-sync", "1"])
        job.end(1)
        job.said("after step 6: parameter dense2.bias of rank 1 differs from rank 0's", 0, 1)
        return Row("a parameter of a rank changed", launcher, framework, None, None, None, "ended, parameter named")

    def write(self, launcher: str, framework: str) -> Row:
        """kill -9 while checkpoints are written."""
        del launcher, framework
        kills = 1000
        announced = kills_while_writing(self.place(), kills, self.random)
        return Row(f"{kills} kills while writing", "", "", None, None, 0, f"all of {announced} checkpoints whole")


def check(seconds: float, limit_s: float, what: str, job: Job) -> None:
    if seconds > limit_s:
        raise Wrong(f"{what} after {seconds:.1f} s, and not within {limit_s:g} s:\n{job.output}")


def can_mount(folder: Path) -> bool:
    """Whether this process may: as root, and not in every container."""
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True).returncode:
        return False
    return not subprocess.run(["umount", str(folder)]).returncode


@contextlib.contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Callable[[], None]]:
    """A disk of this size at a folder; the function that is given makes it large."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def kills_while_writing(folder: Path, kills: int, generator: random.Random) -> int:
    """Every checkpoint that was told is there or was pruned for newer ones; every one that is there is whole.

    Returns the last one's step.
    """
    announced = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                _write_until_killed(folder, writer)
            finally:
                os._exit(1)
        os.close(writer)
        told = os.read(reader, 4)  # at least one is written
        time.sleep(generator.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for path in folder.glob("step-*"):
            checkpoints.load(path)
        told += os.read(reader, 1 << 16)
        os.close(reader)
        announced = max(announced, int.from_bytes(told[-4:], "little"))
        assert checkpoints.newest(folder)[1].position.step >= announced
    assert announced >= kills
    return announced


def _write_until_killed(folder: Path, told: int) -> None:
    """Save checkpoint after checkpoint, and tell each one's step once it is safe."""
    step = checkpoints.newest(folder)[1].position.step if list(folder.glob("step-*")) else 0
    weights = initial_weights(NETWORKS["lenet"], "xavier", 1)
    while True:
        step += 1
        position = Position(1, 128, step, 64, 0)
        saved = Checkpoint(weights, OptimizerState({}, 0.0, 0, {}), position, "lenet", "torch", "sgd", "ab12")
        checkpoints.save(folder, saved, keep=3)
        os.write(told, step.to_bytes(4, "little"))


ON_ONE_HOST, FRAMEWORKS = ("local", "horovodrun", "mpirun"), ("torch", "mxnet", "tensorflow")
LAUNCHERS = {
    "kill": (*ON_ONE_HOST, "srun"),
    "freeze": (*ON_ONE_HOST, "srun"),
    "sleep": ON_ONE_HOST,
    "cable": ("horovodrun",),
    "elastic": ("horovodrun",),
    "ask": ON_ONE_HOST,
    "flip": ON_ONE_HOST,
    "full": ON_ONE_HOST,
    "disk": ON_ONE_HOST,
    "stall": ON_ONE_HOST,
    "slow": ON_ONE_HOST,
    "gone": ON_ONE_HOST,
    "nan": ON_ONE_HOST,
    "drift": ON_ONE_HOST,
    "write": ("",),
}
"""Of each fault."""


def cases(generator: random.Random, only: list[str]) -> Iterator[tuple[str, str, str]]:
    """Without end: each round has a kill in every launcher and framework, and the others in every one of either."""
    while True:
        made = [("kill", launcher, framework) for launcher in LAUNCHERS["kill"] for framework in FRAMEWORKS]
        for fault, launchers in LAUNCHERS.items():
            if fault != "kill":
                able = FRAMEWORKS[::2] if fault == "elastic" else FRAMEWORKS  # Horovod's MXNet is not
                frameworks = itertools.cycle(generator.sample(able, len(able)))
                made += [(fault, launcher, next(frameworks)) for launcher in launchers]
        generator.shuffle(made)
        yield from (one for one in made if one[0] in only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="no case begins after this time (10)")
    parser.add_argument("--seed", type=int, default=0, help="decides order, steps and ranks (0)")
    parser.add_argument("--only", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS), metavar="FAULT")
    parser.add_argument("--output", type=Path, help="write the table there, too")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-chaos-"))
    suite, until = Suite(folder, options.seed), time.monotonic() + 60 * options.minutes
    print(f"seed {options.seed}, {options.minutes:g} minutes, in {folder}\n\n{HEAD}", flush=True)
    with suite.down:
        rows = outcomes(suite, cases(suite.random, options.only), until)
    shutil.rmtree(folder)
    print(f"\n{sum(row.ran for row in rows)} faults, all as promised; no process left behind")
    if options.output:
        options.output.write_text("\n".join([HEAD, *(row.line() for row in rows), ""]))


def outcomes(suite: Suite, made: Iterator[tuple[str, str, str]], until: float) -> list[Row]:
    """Of the cases that begin before `until` (monotonic, in s); ends the process where one is not as promised."""
    rows = []
    for fault, launcher, framework in made:
        if time.monotonic() > until:
            break
        try:
            rows.append(getattr(suite, fault)(launcher, framework))
        except pytest.skip.Exception as why:
            rows.append(Row(fault, launcher, framework, state=f"left out: {why}", ran=False))
        except (AssertionError, pytest.fail.Exception) as error:
            for process in left(suite.folder):
                process.kill()
            sys.exit(f"\n{fault}, {launcher}, {framework}: {error}\n\nits files are in {suite.folder}")
        print(rows[-1].line(), flush=True)
    return rows


if __name__ == "__main__":
    main()
