"""How the records of a run, and its end, reach its trackers: each in a thread that training never waits for."""

from __future__ import annotations

import contextlib
import copy
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.runs import metrics, trackers
from hvdtrain.runs.console import log, log_to_file
from hvdtrain.runs.metrics import MetricsReader
from hvdtrain.runs.trackers import Tracker
from hvdtrain.system import credentials
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable

END_S = 5.0
"""How long the end of a run waits for all of its trackers."""
MAX_WAITING = 1000
"""How many records wait for a tracker at most; further ones are lost."""
THREADS = "tracker "
"""How the names of the threads begin."""


class Tracking:
    """Hands a run's records to trackers. Create it before the run's first record is written.

    names: of trackers. folder: the run's. content: of its config.json. step: the number of steps that are done.
    """

    def __init__(self, names: Sequence[str], folder: Path, content: dict[str, Any], step: int) -> None:
        self._deliveries: list[Delivery] = []
        self._recorded = MetricsReader(folder / metrics.NAME).read().places if names else {}
        config = {**_public(content), "folder": str(folder.absolute()), "step": step}
        for name in names:
            try:
                self._deliveries.append(Delivery(name, trackers.load(name), content["id"], config))
            except UserError as error:
                log.warning("%s; training continues without it", error)

    def log(self, record: dict[str, Any]) -> None:
        """Hand a record to all trackers; it never waits for one."""
        if self._deliveries:
            place = metrics.place_of(record["step"], record.get("epoch"))
            repeated = place <= self._recorded.get(record["kind"], float("-inf"))
            for delivery in self._deliveries:
                delivery.log({**record, "repeated": repeated})

    @contextlib.contextmanager
    def until_end(self) -> Iterator[None]:
        """Tell the trackers how what is inside ends."""
        try:
            yield
        except BaseException as error:
            self._end(RunEnd.of_exception(error).status)
            raise
        self._end("finished")

    def _end(self, status: str) -> None:
        deadline = time.monotonic() + END_S
        for delivery in self._deliveries:
            delivery.end(status)
        for delivery in self._deliveries:
            delivery.join(deadline)


class Delivery:
    """Starts a tracker, and hands it records, then the end. A record that it does not accept is lost.

    make: what makes the tracker. Nothing here raises what a tracker raises, or waits for it.
    """

    def __init__(self, name: str, make: Callable[[], Tracker], run_id: str, config: dict[str, Any]) -> None:
        self._name, self._make, self._start = name, make, (run_id, copy.deepcopy(config))
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """Records; None after the last one."""
        self._status = ""
        self._lost, self._said = 0, False
        self._thread = threading.Thread(target=self._deliver, name=THREADS + name, daemon=True)
        self._thread.start()

    def log(self, record: dict[str, Any]) -> None:
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(copy.deepcopy(record))
        else:
            self._lost += 1
            self._say(f"does not accept records as fast as they come: {MAX_WAITING} wait, and others are lost")

    def end(self, status: str) -> None:
        """The run has ended; `join` waits until the tracker knows."""
        self._status = status
        self._waiting.put(None)

    def join(self, deadline: float) -> None:
        """Wait until the tracker has ended, or for that time (monotonic, in s); log how many records it lacks."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        busy = self._thread.is_alive()
        # The record that the tracker has, and those that wait with the end.
        if lost := self._lost + (max(self._waiting.qsize(), 1) if busy else 0):
            why = "record(s) of this run: it does not respond" if busy else "record(s) of this run"
            log.warning("tracker %s lacks up to %d %s", self._name, lost, why)

    def _deliver(self) -> None:
        tracker = self._started()
        while record := self._waiting.get():
            if not tracker or not self._calls("log", tracker.log, record):
                self._lost += 1
        if tracker:
            self._calls("end", tracker.end, self._status)

    def _started(self) -> Tracker | None:
        made: list[Tracker] = []
        if not self._calls("start", lambda: made.append(self._make())):
            return None
        return made[0] if self._calls("start", made[0].start, *self._start) else None

    def _calls(self, what: str, method: Callable[..., None], *arguments: Any) -> bool:
        """Whether a call succeeds; what the first one that fails raises is logged."""
        try:
            method(*arguments)
        except BaseException as error:  # also SystemExit, as of a library that knows of no threads
            lost = {"start": "it gets no records", "log": "that record is lost", "end": "it may lack the end"}[what]
            self._say(f"{what} raised {type(error).__name__}: {error} ({lost})", traceback.format_exc())
            return False
        return True

    def _say(self, problem: str, details: str = "") -> None:
        if not self._said:
            self._said = True
            log.warning("tracker %s: %s; training continues", self._name, printable(problem))
            if details:
                log_to_file(logging.WARNING, details)


def hanging() -> list[str]:
    """The names of trackers whose threads have not ended; they may keep a process from ending."""
    return [thread.name.removeprefix(THREADS) for thread in threading.enumerate() if thread.name.startswith(THREADS)]


def _public(content: Any) -> Any:
    """A value of config.json without passwords in its texts, and without the command of --on-end."""
    if isinstance(content, dict):
        return {name: _public(value) for name, value in content.items() if name != "on_end"}
    if isinstance(content, list | tuple):
        return [_public(value) for value in content]
    return credentials.removed(content) if isinstance(content, str) else content
