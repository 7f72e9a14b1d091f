"""Folders of runs made up for tests of what reads them: as training leaves them, and as it writes them meanwhile."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import to_record
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.system.run_end import RunEnd
from support.networks import LENET_RECORD

STEPS_PER_EPOCH = 100


def write_run(folder: Path, ranks: int = 2, started: str = "2026-05-01T14:03:11+0000", **options: Any) -> Path:
    """A run's folder with its config.json only. options: of training."""
    folder.mkdir(parents=True)
    config = Config(**{"strategy": "ring", "epochs": 4, **options})
    recorded = {
        "id": "0123456789abcdef",
        "config": to_record(config),
        "runtime": to_record(RuntimeOptions(name=folder.name)),
        "network": LENET_RECORD,
        "steps": config.epochs * STEPS_PER_EPOCH,
        "ranks": ranks,
        "devices": 1,
        "device": "cpu",
        "controller": "",
        "versions": {"python": "3.11.7", "numpy": "1.23.5"},
        "host": {"name": "node1", "processor": "Z80", "cores": 8, "bound": ""},
        "started": started,
    }
    (folder / "config.json").write_text(json.dumps(recorded))
    return folder


def write_beat(folder: Path, rank: int, number: int = 1, age_s: float = 0.0, **values: Any) -> None:
    """A heartbeat, as if it had been written `age_s` ago. A running rank writes a new number twice a second."""
    content = {
        **{"rank": rank, "pid": 1000 + rank, "host": f"node{1 + rank // 8}", "step": 150, "doing": "step"},
        **{"idle_s": 0.1, "number": number, "time": time.time() - age_s, "memory": 300e6 + rank * 1e6},
        **{"compute_s": 0.4 * number, "communicate_s": 0.1 * number, "data_s": 0.0, "rows": 500 * number, **values},
    }
    path = folder / "heartbeats" / f"rank-{rank}.json"
    path.parent.mkdir(exist_ok=True)
    (part := path.with_suffix(".new")).write_text(json.dumps({"waits": content["doing"] == "step", **content}))
    os.utime(part, (time.time() - age_s,) * 2)
    os.replace(part, path)


def write_records(folder: Path, steps: int, every: int = 5) -> None:
    """The metrics.jsonl of a run that made so many steps, with an evaluation after each epoch."""
    lines = []
    for step in range(every, steps + 1, every):
        epoch = step / STEPS_PER_EPOCH
        record = {"kind": "train", "step": step, "epoch": epoch, "loss": 2.3 / (1 + epoch), "lr": 0.05}
        lines.append(json.dumps({**record, "images_per_s": 1000.0 + step}))
        if step % STEPS_PER_EPOCH == 0:
            scores = {"loss": 2.5 / (1 + epoch), "accuracy": round(1 - 0.5 / (1 + epoch), 4)}
            lines.append(json.dumps({"kind": "test", "step": step, "epoch": epoch, **scores}))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_changes(folder: Path, back: bool = False, why: str = "was killed by SIGKILL") -> None:
    """Rank 2 of four was lost at step 120, and its shards moved; back: it joined again at step 140, elsewhere."""
    writer, nodes = MetricsWriter(folder), ["node1", "node1", "node2", "node2"]
    start = {"hosts": nodes, "lost": [], "joined": [0, 1, 2, 3], "seconds": 0.0, "repeated": 0}
    writer.write("members", 0, epoch=0.0, number=1, ranks=[0, 1, 2, 3], **start)
    lost = {"hosts": [*nodes[:2], nodes[3]], "lost": [{"rank": 2, "why": why}], "joined": []}
    writer.write("members", 120, epoch=1.2, number=2, ranks=[0, 1, 3], **lost, seconds=0.31, repeated=1)
    moved = [[8, 2, 0], [9, 2, 1], [10, 2, 3], [11, 2, 0]]
    writer.write("shards", 120, epoch=1.2, counts=[6, 5, None, 5], moved=moved, why="rank 2 is lost")
    if back:
        joined = {"hosts": [*nodes[:2], nodes[3], "node3"], "lost": [], "joined": [2]}
        writer.write("members", 140, epoch=1.4, number=3, ranks=[0, 1, 3, 2], **joined, seconds=0.02, repeated=0)
    writer.close()


def write_log(folder: Path, rank: int, *messages: str, level: str = "INFO") -> None:
    """Messages in a rank's log."""
    (folder / "logs").mkdir(exist_ok=True)
    lines = [f"2026-05-01 14:03:{second:02},000 {level} {text}\n" for second, text in enumerate(messages, 11)]
    with open(folder / "logs" / f"rank-{rank}.log", "a") as file:
        file.write("".join(lines))


def write_finished(folder: Path, accuracy: float = 0.875, **options: Any) -> Path:
    """A run that finished."""
    write_run(folder, **options)
    write_records(folder, 4 * STEPS_PER_EPOCH)
    result = {"accuracy": accuracy, "loss": 0.5, "steps": 400, "images_per_s": 1200.0, "epoch_s": 5.0}
    (folder / "result.json").write_text(json.dumps(result))
    RunEnd("finished").write(folder)
    return folder


def write_task_run(folder: Path, metrics: dict[str, float], loss: float = 0.5, score: str = "auto") -> Path:
    """A run of a task of the user's that finished, as earlier versions recorded it, with the default --data."""
    write_run(folder, model="lm.py:Task", strategy="single", ranks=1)
    path = folder / "config.json"
    recorded = json.loads(path.read_text())
    recorded["network"] = {"task": "lm.py:Task", "options": {}}
    recorded["config"].pop("score")
    recorded["runtime"]["score"] = score
    path.write_text(json.dumps(recorded))
    records = [
        {"kind": "test", "step": step, "epoch": step / STEPS_PER_EPOCH, "loss": loss * 100 / step,
         **{name: value * 100 / step for name, value in metrics.items()}}
        for step in (100, 200, 300)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    result = {"accuracy": None, "metrics": metrics, "loss": loss, "steps": 400, "images_per_s": 1200.0}
    (folder / "result.json").write_text(json.dumps({**result, "global_batch": 64}))
    RunEnd("finished").write(folder)
    return folder
