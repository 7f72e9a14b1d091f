"""Reads the rows of coming steps in the background, in their order and with bounded memory."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from hvdtrain.datasets.worker import WorkerProcess
from hvdtrain.interfaces.reading import Dataset, Draw, Part, Rows, Source
from hvdtrain.system import resources

AHEAD = 2
"""Batches per worker that are read, or have been read, before they are asked for."""
MAX_AUTO = 16
"""Workers that `auto` starts at most."""


class Reader:
    """Reads the rows of a data set for one rank. Enter it while rows are read; leaving it ends all workers.

    workers: how many batches are read at the same time, by threads; 0 to read each when it is asked for. Where a source
    says that it needs processes, each thread has one, which loads the data by itself.
    loader_spec: how those processes load the data (see `WorkerProcess`); None if there can be none, and such a source
    is then read when it is asked for. seed: what random numbers of rows depend on, besides epoch and row. check: called
    with part, row numbers and rows of each batch that was read; returns the rows to use, or raises an error.
    """

    def __init__(
        self,
        dataset: Dataset,
        workers: int | Literal["auto"],
        loader_spec: dict[str, Any] | None = None,
        seed: int = 0,
        check: Callable[[Part, np.ndarray, Rows], Rows] | None = None,
    ) -> None:
        self._sources = dataset.parts
        self._in_order = {part for part, source in self._sources.items() if source.is_stream}
        """Parts that the rank reads itself, when a step asks for them."""
        others = {part: source for part, source in self._sources.items() if part not in self._in_order}
        self._in_processes = {part for part in others if others[part].background == "processes"}
        self.workers = _auto(others.values()) if workers == "auto" else workers
        self.reads_ahead = "train" in others and (not self._in_processes or loader_spec is not None)
        """Whether it has workers, if it is given any."""
        if not self.reads_ahead:
            self.workers = 0
        self._loader_spec, self._seed, self._check = loader_spec if self._in_processes else None, seed, check
        self._processes: list[WorkerProcess] = []
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Reader:
        if self.workers:
            self._threads = ThreadPoolExecutor(self.workers, "reader")
            for _ in range(self.workers if self._loader_spec else 0):
                self._processes.append(WorkerProcess(self._loader_spec or {}))
                self._idle.put(self._processes[-1])
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # then a thread that waits for it also ends
        if self._threads:
            self._threads.shutdown(wait=bool(self._processes), cancel_futures=True)
        for process in self._processes:
            process.close()
        self._processes, self._threads = [], None

    def wait_until_loaded(self) -> None:
        """Wait until all processes can read, so that no step does. Raises what loading the data raised there."""
        for process in self._processes:
            process.wait_until_loaded()

    def batches(self, part: Part, rows: Iterable[np.ndarray], epoch: int = 0) -> Iterator[Rows]:
        """The rows of each batch, int64 (n,), read; at most AHEAD * workers of them are read ahead.

        epoch: that of training, counted from 0. Raises what reading a batch raises, when its turn comes.
        """
        threads, draw = None if part in self._in_order else self._threads, Draw(self._seed, epoch)
        if threads is None:
            for numbers in rows:
                yield self._read(part, numbers, draw)
            return
        pending: deque[Future[Rows]] = deque()
        try:
            for numbers in rows:
                pending.append(threads.submit(self._read, part, numbers, draw))
                if len(pending) >= AHEAD * self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _read(self, part: Part, rows: np.ndarray, draw: Draw) -> Rows:
        """Read and check a batch; called in a thread, if there are threads."""
        if self._processes and part in self._in_processes:
            batch = self._read_in_process(part, rows, draw)
        else:
            batch = self._sources[part].read(rows, draw)
        return self._check(part, rows, batch) if self._check else batch

    def _read_in_process(self, part: Part, rows: np.ndarray, draw: Draw) -> Rows:
        process = self._idle.get()
        try:
            return process.read(part, rows, draw)
        finally:
            self._idle.put(process)


def _auto(sources: Iterable[Source]) -> int:
    """Workers for these sources: none for arrays in memory, else one for each core of the rank but one, at least 1."""
    if all(source.in_memory for source in sources):
        return 0
    return min(max(resources.cores_of_rank() - 1, 1), MAX_AUTO)
