"""What a check may use: programs and parts of the probe in processes of their own, and the job's other ranks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import ExaminedRank
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.rank_info import host_name
from hvdtrain.system.resources import within_quota

BUDGET_S = 150
"""Time limit for all checks, without the exchange of findings. The slowest case is a job whose probes all hang."""


def load_average() -> float:
    """Processes of this machine that ran or waited, on average of a minute; 0 without /proc."""
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return 0.0


@dataclass
class CheckContext(ExaminedRank):
    """Where the doctor runs and what for, with results that are too slow to compute twice. Each check has a copy."""

    deadline: float
    """time.monotonic() after which no subprocess is started or waited for any more."""
    hosts: tuple[str, ...] = ()
    """Hosts to check over ssh."""
    runs: Path = Path("runs")
    load: float = field(default_factory=load_average)
    """Before the checks."""
    host: str = field(default_factory=host_name)
    job: Any = None
    """The `ConnectedJob` with the other ranks, for checks that all ranks make together."""
    is_ended: threading.Event = field(default_factory=threading.Event)
    """Set where a signal ends the doctor: no subprocess is started any more."""
    _answers: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """With what made each of them late."""
    _asking: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    """Locks of those answers, since checks run side by side."""
    _cores: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(within_quota(len(os.sched_getaffinity(0))))
    )
    """Held while a subprocess runs: as many as there are cores import frameworks, so that none is late."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks of the job, in their order; all ranks must call it. Raises HvdtrainError."""
        return list(self.job.ring.gather(value))

    def busy(self) -> str:
        """A sentence if other programs keep this machine busy; the doctor itself uses no more than all cores."""
        cores = os.cpu_count() or 1
        load = self.load if self.load > cores else load_average() - cores
        return f"this machine is busy: {load:.1f} processes for {cores} core(s)" if load > cores else ""

    def run(self, command: list[str], limit_s: float, **environment: str) -> Completed:
        """Run a program once a core is free, for `limit_s` and a few seconds at most; notes in `late` why it failed."""
        with self._cores:
            limit_s = min(limit_s, self.deadline - time.monotonic())
            if limit_s <= 0 or self.is_ended.is_set():
                completed = Completed(None, "", "", 0)
            else:
                completed = subprocesses.run(command, limit_s, {**os.environ, **environment})
        if completed.failed_late:
            is_over = time.monotonic() > self.deadline
            self.late = self.late or ("the time limit of all checks was reached" if is_over else self.busy())
        return completed

    def probe(self, part: str, *arguments: str, limit_s: float = 60) -> tuple[dict[str, Any], Completed]:
        """Run a part of `hvdtrain.doctor.probe` in a separate process; its merged messages, and how it ended."""
        completed = self.run(subprocesses.probe_command(part, *arguments, limit_s=limit_s), limit_s + 1)
        return subprocesses.merged_messages(completed.out), completed

    def framework(self, name: str) -> dict[str, Any]:
        """Result of `import name` and `import horovod.name` in a subprocess (see `probe.framework`), cached."""

        def ask() -> dict[str, Any]:
            answer, completed = self.probe("framework", name)
            if "end" not in answer:  # it died before it could report an error
                stage = "horovod" if "version" in answer else "framework"
                answer.setdefault(f"{stage}_error", completed.reason())
            return answer

        return self.once(f"framework {name}", ask)

    def frameworks(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What `framework` returns for each name, asked side by side, the last first: TensorFlow takes longest."""
        with ThreadPoolExecutor(max(len(names), 1)) as threads:
            answers = [threads.submit(self.framework, name) for name in reversed(names)]
        return {name: answer.result() for name, answer in zip(reversed(names), answers, strict=True)}

    def once(self, key: str, ask: Callable[[], Any]) -> Any:
        """The result of `ask`, called only the first time for this key; other threads wait for it."""
        with self._asking[key]:
            if key not in self._answers:
                self._answers[key] = ask(), self.late
            answer, late = self._answers[key]
        self.late = self.late or late
        return answer
