"""A rank that trains nothing, in a job that survives: it counts steps, but groups, changes and watchdog are real.

`faults/orders.py` forks it, so that a rank starts in a hundredth of the time. Its plan says what it does besides: how
long it starts, in which steps it leaves or waits, how long it works after training, and how it ends. It writes what
happens to it into the folder's file `log`, and the step of its checkpoint into `checkpoint`.
"""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hvdtrain.collectives import ring, surviving
from hvdtrain.collectives.surviving import RanksChanged, SurvivingGroup, leave_if_agreed
from hvdtrain.errors import Stopped
from hvdtrain.interfaces.learner import Position
from hvdtrain.system import agent_pipe, processes
from hvdtrain.system.phases import GRADIENTS, LOOP, RENEWING, phases
from hvdtrain.system.rank_info import LAUNCH, VARIABLES
from hvdtrain.system.run_end import Failure
from hvdtrain.training import heartbeats, watchdog
from hvdtrain.training.observer import Pause
from hvdtrain.training.survival import agree, together
from hvdtrain.training.timing import StepTimer
from hvdtrain.training.watchdog import Watchdog

HANG_S = 2.5
"""Without progress a rank hangs; it also counts as stopped without a heartbeat for so long."""
DEFECT = 3
"""The exit status of a rank that leaves."""


def hurry() -> None:
    """Have all wait less than they do in real jobs."""
    surviving.ASK_AGAIN_S = 0.5
    watchdog.MIN_LIMIT_S = heartbeats.SILENT_S = HANG_S
    watchdog.TICK_S = heartbeats.HEARTBEAT_S = processes.TICK_S = 0.1
    watchdog.REPORT_WAIT_S = 0.3


class Interpreter:
    """In the place of the process that watches Python."""

    def __init__(self) -> None:
        self.stdin = io.BytesIO()

    def wait(self) -> None:
        pass


class SmallWatchdog(Watchdog):
    """The watchdog without a process of its own."""

    def _watch_interpreter(self) -> Any:
        return Interpreter()


class Member:
    """This process, as a rank of the job. plan: of all ranks, see `orders.Plan`."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self._folder, self._plan = folder, plan
        self._rank = int(os.environ[VARIABLES[LAUNCH][0]])
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._step, self._requested = -1, False
        self.note("start")

    def note(self, what: str, **values: Any) -> None:
        """Write what happens into the log."""
        line = {"t": time.monotonic(), "rank": self._rank, "pid": os.getpid(), "what": what, **values}
        os.write(self._log, json.dumps(line).encode() + b"\n")

    def end(self, status: int) -> NoReturn:
        self.note("end", status=status)
        os._exit(status)

    def run(self) -> NoReturn:
        own = self._plan["ranks"][self._rank]
        time.sleep(own["start_s"])
        if self._plan["is_program"]:  # of another kind, that trains nothing
            time.sleep(own["post_s"])
            self.end(own["status"])
        try:
            self._train()
        except Stopped:
            self.end(Stopped.exit_status)
        self.note("finished")
        time.sleep(own["post_s"])
        self.end(own["status"])

    def _train(self) -> None:
        group = self._group = SurvivingGroup(ring.connect)
        self.note("ready")
        group.join(HANG_S)
        together(group, self._agree)
        self._step = max(self._step, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._request)
        group.connect_limit_s = float("inf")
        timer = StepTimer(group)
        phases.start_run(LOOP, timer.on_step_time)
        with SmallWatchdog(self._folder, group, HANG_S, timer, lambda: 0) as self._dog:
            self._dog._compiling = False
            while True:
                try:
                    while self._step < self._plan["steps"]:
                        self._make_step()
                    phases.begin(GRADIENTS)
                    return group.close()
                except RanksChanged as change:
                    self._renew(change)

    def _request(self, *_: object) -> None:
        self._requested = True

    def _agree(self) -> None:
        """As `survival.renew` does."""
        group = self._group
        found = agree(group, self._step)
        if not found.is_shared:
            self._step = max(self._step, group.broadcast(self._step, found.root))
        elif found.root < 0:
            path = self._folder / "checkpoint"
            self._step = group.broadcast(int(path.read_text()) if path.exists() else 0)
        group.trains()
        self.note("trains", membership=group.membership.number, step=self._step)

    def _renew(self, change: RanksChanged) -> None:
        phases.begin(RENEWING)
        _, changed = together(self._group, self._agree, change)
        assert changed
        self._dog.renewed(Position(step=self._step), Pause(changed, 0.0, 0))
        self._dog._compiling = False  # else a rank that is stuck in its first step would not hang

    def _make_step(self) -> None:
        group = self._group
        phases.begin(LOOP)
        self._do_what_is_planned(self._step)
        time.sleep(self._plan["step_s"])
        known = np.zeros(group.size + 1)
        known[group.rank], known[-1] = group.known_membership, self._requested
        phases.begin(GRADIENTS)
        known = group.sum(known)
        group.agreed_membership = int(known[:-1].min())
        self._step += 1
        self._dog.progress(self._step)
        self.note("step", step=self._step)
        if known[-1]:
            self._save()
            raise Stopped("stopped")
        leave_if_agreed(group)

    def _save(self) -> None:
        if self._group.rank == 0:
            (self._folder / "checkpoint").write_text(str(self._step))
        self._group.gather(None)

    def _do_what_is_planned(self, step: int) -> None:
        """Once for each entry of the plan, in whichever process comes to it."""
        for index, (rank, at, what) in enumerate(self._plan["steps_of"]):
            if (rank, at) != (self._rank, step):
                continue
            try:
                os.close(os.open(self._folder / f"done-{index}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            if what == "evaluate":
                time.sleep(HANG_S / 2)
            elif what == "stuck":
                time.sleep(600)
            else:
                failure = {"fail": Failure("a defect"), "refuse": Failure("bad data", retry=False)}.get(what)
                if failure:
                    agent_pipe.send(failure)
                self.end(DEFECT)
