"""Made-up folders of runs, also of runs that train: heartbeats, records and ends as training writes them."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hvdtrain.system.run_end import RunEnd
from support.run_folders import write_beat, write_log, write_run


def records(number: int, ranks: int = 2, seed: int = 0, slow: int | None = None, rate: float = 1.0) -> list[str]:
    """The lines of a metrics.jsonl: `number` logging steps of 10 steps, with an evaluation after each hundred.

    slow: a rank that computes for half as long again in the second half. rate: how fast the loss falls.
    """
    noise, lines = random.Random(seed), []
    for at in range(1, number + 1):
        step, epoch = at * 10, at / 100
        loss = 0.08 + 2.2 * math.exp(-3 * rate * at / number) * noise.uniform(0.94, 1.06)
        own = [
            0.8 * noise.uniform(0.97, 1.03) * (1.8 if rank == slow and at > number / 2 else 1) for rank in range(ranks)
        ]
        data = [0.06 * noise.uniform(0.8, 1.2) for _ in range(ranks)]
        longest = max(map(sum, zip(own, data, strict=True)))
        parts = {
            "compute_s": own, "data_s": data,
            "communicate_s": [longest + 0.05 - one - other for one, other in zip(own, data, strict=True)],
        }  # fmt: skip
        speed = 640 * ranks / (longest + 0.05)
        train = {"kind": "train", "step": step, "time": 1.7e9 + at, "epoch": epoch, "loss": loss, "lr": 0.1}
        lines.append(json.dumps({**train, "images_per_s": speed, **parts}))
        if at % max(number // 20, 1) == 0:
            accuracy = 0.98 - 0.8 * math.exp(-4 * rate * at / number) + noise.uniform(-0.004, 0.004)
            test = {"kind": "test", "step": step, "epoch": epoch, "loss": loss * 1.1, "accuracy": accuracy}
            lines.append(json.dumps(test))
    return lines


def make_run(
    folder: Path, number: int = 100, end: RunEnd | None = None, slow: int | None = None, rate: float = 1.0,
    ranks: int = 2, steps: int = 4000, started: str = "2026-05-01T14:03:11", **options: Any
) -> Path:  # fmt: skip
    """A run's folder; without `end`, of a run that trains, once heartbeats are written. options: of any value."""
    write_run(folder, ranks, started)
    recorded = json.loads((folder / "config.json").read_text())
    recorded["config"] |= {"strategy": "horovod", **options}
    recorded |= {"steps": steps, "id": f"{abs(hash(started)) % 16**16:016x}"}
    (folder / "config.json").write_text(json.dumps(recorded))
    lines = records(number, ranks, seed=len(folder.name), slow=slow, rate=rate)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for rank in range(ranks):
        write_log(folder, rank, *(f"step {at * 10}: loss {2 / at:.4f}" for at in range(1, 30)))
    if end:
        end.write(folder)
    return folder


class RunningRanks:
    """The heartbeats of ranks that train, one of each at a `write`; in a `with` statement twice a second, as in a job.

    slow: rank that computes for nearly twice as long, so that the others wait for it. silent: ranks that write none.
    """

    def __init__(self, folder: Path, ranks: int, slow: int | None = None, step: int = 100) -> None:
        self.slow, self.silent, self.idle_s = slow, frozenset[int](), 0.1
        self._folder, self._step, self._number = folder, step, 0
        self._written, self._totals = time.monotonic() - 60, [Counter[str]() for _ in range(ranks)]
        self._ended = threading.Event()

    def __enter__(self) -> RunningRanks:
        self.write()
        self._ended.clear()
        self._thread = threading.Thread(target=self._write_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _write_on(self) -> None:
        while not self._ended.wait(0.5):
            self.write()

    def write(self) -> None:
        self._number += 1
        before, self._written = self._written, time.monotonic()
        for rank, totals in enumerate(self._totals):
            compute, data = 0.93 if rank == self.slow else 0.52 + 0.004 * (rank % 5), 0.03 + 0.002 * (rank % 3)
            shares = {"compute_s": compute, "data_s": data, "communicate_s": 1 - compute - data, "rows": 770 + rank}
            totals.update({name: share * (self._written - before) for name, share in shares.items()})
            if rank not in self.silent:
                values = {"step": self._step + self._number, "idle_s": self.idle_s, "host": f"node{1 + rank // 4}"}
                write_beat(self._folder, rank, self._number, **values, **totals)
