"""Ranks of a job that survives are killed, one by one and several at once: it ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter

from support.environment import importing
from support.jobs import ROOT, run

from faults.suite import Row, Suite
from faults.surviving_job import RANKS, SurvivingJob, trainings_of
from faults.watched_job import Mismatch

PHASES = {"gradients": 0.02, "update": 0.002, "evaluation": 0.03, "checkpoint": 0.03, "logging": 0.002, "data": 0.002,
          "change of ranks": 0.3}  # fmt: skip
"""Phases in which a rank is killed, and at most how many seconds after the phase began; see `system/phases.py`."""
KINDS = {"any": 6, "position 0": 3, "two": 3, "again": 3, "joining": 4, "agent": 1, **dict.fromkeys(PHASES, 1)}
"""Kinds of kills, and how often each is drawn. `again`: another rank, while the others get over the loss of the first;
`joining`: a rank that starts, but does not train yet; `agent`: only the process that has started a rank."""
AGAIN_S = 0.4
PAUSE_S = {"torch": (0.1, 1.6), "mxnet": (0.1, 1.2), "tensorflow": (0.3, 3.0)}
"""From a kill to the next one."""
STUCK_S = 90.0
"""A job that records no step for this long is stuck: on two cores, several ranks import TensorFlow at once."""
ORDER_S = 10.0
"""How long an order to be killed in a phase waits for a rank that begins it."""
STARTS = 2
"""Kills of a rank before the first step; the launcher accepts one more."""
LAST_STEPS = 4
JOIN_ANYWAY = 0.1
"""How often a rank that starts is killed where only one is left that trains."""
ORDERS = 500
PATHS = importing(ROOT / "tests")
STEPS = 400
STEP_S = 0.1


class Kills:
    """Kills ranks of a job at moments that a seed decides, up to its end; never all that have the state of training."""

    def __init__(self, suite: Suite, job: SurvivingJob) -> None:
        self._random, self._job = suite.random, job
        self.counts: Counter[str] = Counter()
        self._starts: Counter[int] = Counter()
        self._log: list[str] = []
        self._next = self._progress = time.monotonic()
        self._order, self._ordered = "", 0.0
        """The phase in which the next rank is to be killed, and since when."""

    def until_end(self) -> None:
        """Raises Mismatch if the job is stuck."""
        job = self._job
        while job.process.poll() is None:
            now = time.monotonic()
            if job.read():
                self._progress = now
            elif now - self._progress > STUCK_S:
                raise Mismatch(f"no step for {STUCK_S:g} s after step {job.step}:\n{job.output}")
            if self._order:
                self._look_at_order(now)
            elif now >= self._next:
                self._kill()
            time.sleep(0.02)
        self._look_at_order(time.monotonic() + ORDER_S)

    def report(self) -> str:
        """The kills, for a message of failure."""
        return "\n".join(["the last kills:", *self._log[-40:]])

    def _kill(self) -> None:
        job, holders = self._job, self._job.holders
        if not job.step:
            self._kill_at_start()
        elif job.step >= job.max_steps - LAST_STEPS:
            if "result" not in self.counts and len(holders) > 1:
                self._give_order("result", 0.0)  # later the training is complete, and a killed rank fails the job
        else:
            kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
            spare = len(holders) - 1 - (kind in ("two", "again"))
            if kind == "joining" and job.starting:
                if spare > 0 or self._random.random() < JOIN_ANYWAY:
                    self._kill_ranks(kind, self._random.choice(job.starting))
                else:
                    self._wait_before_next()
            elif kind != "joining" and spare > 0:
                self._kill_one_of(kind, holders)

    def _kill_one_of(self, kind: str, holders: list[int]) -> None:
        """holders: at least one more than are killed."""
        choice = self._random.sample(holders, 2)
        if kind in PHASES:
            self._give_order(kind, self._random.choice((0.0, self._random.uniform(0, PHASES[kind]))))
        elif kind == "position 0":
            self._kill_ranks(kind, holders[0])
        elif kind == "two":
            self._kill_ranks(kind, *choice)
        elif kind == "again":
            self._kill_ranks(kind, choice[0])
            time.sleep(self._random.uniform(0.002, AGAIN_S))
            self._kill_ranks(kind, choice[1])
        elif kind == "agent":
            self._job.kill_agent(choice[0])
            self._count(kind, f"that of rank {choice[0]}")
            self._wait_before_next()
        else:
            self._kill_ranks(kind, self._random.choice([*holders, *self._job.starting]))

    def _kill_at_start(self) -> None:
        """A rank, before it is a member."""
        ranks = [rank for rank in self._job.starting if self._starts[rank] < STARTS]
        if ranks and self._random.random() < 0.05:
            rank = self._random.choice(ranks)
            self._starts[rank] += 1
            self._kill_ranks("start", rank)

    def _kill_ranks(self, kind: str, *ranks: int) -> None:
        for rank in ranks:
            self._job.kill(rank, signal.SIGKILL)
            self._count(kind, f"rank {rank}")
        self._wait_before_next()

    def _count(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        at = time.time() - self._job.began
        self._log.append(f"  {at:7.2f} s, step {self._job.step}, {kind}: {what}, of members {[*self._job.pids]}")

    def _wait_before_next(self) -> None:
        self._next = time.monotonic() + self._random.uniform(*PAUSE_S[self._job.framework])

    def _give_order(self, phase: str, delay_s: float) -> None:
        self._job.order_kill(phase, delay_s)
        self._order, self._ordered = phase, time.monotonic()

    def _look_at_order(self, now: float) -> None:
        """Count it once a rank has taken it and is gone; withdraw it if no rank begins the phase."""
        folder, phase = self._job.folder / "orders", self._order
        taken = next(folder.glob(f"{phase}.*"), None) if phase else None
        if taken:
            pid = int(taken.suffix[1:])
            if not self._job.runs(pid):
                taken.unlink()
                self._count(phase, f"process {pid}")
                self._order = ""
                self._wait_before_next()
        elif phase and now - self._ordered > ORDER_S:
            with contextlib.suppress(FileNotFoundError):  # a rank takes it just now
                (folder / phase).unlink()
                self._order = ""


def orders(suite: Suite, launcher: str, framework: str) -> Row:
    """Random orders of events in many small jobs, in a process of their own, which forks them: see `orders.py`."""
    del framework
    command = [sys.executable, "-m", "faults.orders", "--jobs", str(ORDERS), "--seconds", "600"]
    status, output = run([*command, "--seed", str(suite.random.randrange(1 << 30))], suite.folder, 900, **PATHS)
    if status:
        raise Mismatch(output)
    return Row(f"{ORDERS} jobs with random orders of events", launcher, "", state=output.splitlines()[-1])


def survive(suite: Suite, launcher: str, framework: str) -> Row:
    """Kill ranks as long as a job trains; it must have the result and the records of an undisturbed process."""
    training = suite.random.choice(trainings_of(framework))
    strategy = suite.random.choice(("horovod", "ring"))
    job = SurvivingJob(
        *(suite.new_folder(), launcher, framework),
        launch_options=["--survive"], ranks=RANKS, strategy=strategy, step_s=STEP_S,
        training=training, max_steps=STEPS,
    )  # fmt: skip
    kills = Kills(suite, job)
    title = f"{training}, {strategy}"
    try:
        kills.until_end()
        job.end(0, cleanup_s=10)
        job.compare(suite.undisturbed(framework, training, job.max_steps))
    except Mismatch as error:
        raise Mismatch(f"{title}: {error}\n{kills.report()}") from None
    suite.kills.update(kills.counts)
    return Row(
        f"{kills.counts.total()} kills: {title}", launcher, framework, state="same losses, same scores, same hash"
    )
