"""Made-up folders of runs, also of runs that train: heartbeats, records and ends as training writes them."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config
from hvdtrain.config.sources import to_record
from hvdtrain.system.run_end import RunEnd
from support.run_folders import write_beat


def config(ranks: int = 2, steps: int = 4000, started: str = "2026-05-01T14:03:11", **options: Any) -> dict[str, Any]:
    """The record of a run's options."""
    values = {**to_record(Config()), "strategy": "horovod", "framework": "torch", "batch_size": 64, **options}
    return {
        "config": values, "ranks": ranks, "devices": ranks, "device": "cpu", "controller": "gloo", "steps": steps,
        "started": started, "id": f"{abs(hash(started)) % 16**16:016x}",
        "versions": {"python": "3.11.7", "numpy": "1.23.5"}, "host": {"name": "node1", "cores": 16},
    }  # fmt: skip


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
    folder: Path, number: int = 100, end: RunEnd | None = None, slow: int | None = None, rate: float = 1.0, **given: Any
) -> Path:
    """A run's folder; without `end`, of a run that trains, once heartbeats are written."""
    found = config(**given)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(found))
    lines = records(number, found["ranks"], seed=len(folder.name), slow=slow, rate=rate)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "logs").mkdir()
    for rank in range(found["ranks"]):
        lines = [f"2026-05-01 14:03:{at % 60:02d},123 INFO step {at * 10}: loss {2 / at:.4f}" for at in range(1, 30)]
        (folder / "logs" / f"rank-{rank}.log").write_text("\n".join(lines) + "\n")
    if end:
        end.write(folder)
    return folder


class Beats:
    """Writes the heartbeats of a run's ranks, as if they trained since then.

    slow: rank that computes for half as long again, so that the others wait for it.
    """

    def __init__(self, folder: Path, ranks: int, slow: int | None = None, step: int = 1000) -> None:
        self._folder, self._ranks, self._slow, self._step = folder, ranks, slow, step
        self._number, self._began = 0, time.monotonic()

    def write(self, without: frozenset[int] = frozenset()) -> None:
        """Write the next heartbeat of each rank but those."""
        self._number += 1
        seconds = time.monotonic() - self._began + 60
        for rank in set(range(self._ranks)) - without:
            compute = 0.93 if rank == self._slow else 0.52 + 0.004 * (rank % 5)
            data = 0.03 + 0.002 * (rank % 3)
            shares = {"compute_s": compute, "data_s": data, "communicate_s": 1 - compute - data}
            values = {name: seconds * share for name, share in shares.items()}
            values |= {"step": self._step + int(seconds * 12), "host": f"node{1 + rank // 4}"}
            write_beat(self._folder, rank, self._number, rows=seconds * (770 + rank), **values)
