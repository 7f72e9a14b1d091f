"""Folders of runs made up for tests of the report, and the report's files."""

from __future__ import annotations

import csv
import io
import json

import numpy as np

from hvdtrain.cli import report
from hvdtrain.config.options import Config
from hvdtrain.config.sources import to_record
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.runs import checkpoints
from hvdtrain.runs.search import finished_runs
from hvdtrain.views.report.content import RunsReport
from hvdtrain.views.report.pages import csv_page
from support.networks import LENET_RECORD

HOST = {"name": "node1", "system": "Linux", "processor": "AMD EPYC", "cores": 4, "OMP_NUM_THREADS": "1"}


SPEED = {"step_s": 0.0256, "cores": 2, "flops_per_image": 13_258_800}


def make_run(
    folder, moved=None, ranks=1, devices=1, host=None, controller="", without=(), metrics=(), network=LENET_RECORD,
    started="2026-01-02T03:04:05+0000", numpy="1.23.5", **given,
):  # fmt: skip
    """Write a run's folder.

    moved: write a checkpoint in which one parameter differs from zero by this much. metrics: records, or lines as they
    are. given: options of training, or values of `result.json`. without: names to leave out, as in old runs.
    """
    options = {name: given.pop(name) for name in list(given) if name in to_record(Config())}
    config = Config(**{"strategy": "single", **options})
    place = {"ranks": ranks, "devices": devices, "device": "cpu", "controller": controller}
    versions = {"python": "3.11.7", "numpy": numpy, config.framework: "2.0"}
    result = {
        "accuracy": 0.9, "loss": 0.3, "steps": 8, "parameters": "ab", "images_per_s": 1000.0, "peak_rss_mb": 400.0,
        "skipped": 0, "per_class_accuracy": {"0": float("nan")}, "epoch_s": 2.0, "test_rows": 10000,
        "global_batch": config.global_batch(ranks), **given,
    }  # fmt: skip
    recorded = {
        "config": to_record(config),
        "places": {"devices": 0},
        "network": network,
        "versions": versions,
        **place,
        "host": {**HOST, **(host or {})},
        "started": started,
    }
    folder.mkdir(parents=True)
    for name, values in (("config.json", recorded), ("result.json", result)):
        kept = {key: value for key, value in values.items() if key not in without}
        (folder / name).write_text(json.dumps(kept))
    lines = [one if isinstance(one, str) else json.dumps(one) for one in metrics]
    if lines:
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if moved is not None:
        save(folder, config, moved, step=result["steps"])
    return folder


def learning(intervals=12, ranks=1, slow=None, factor=2.0, communicate=True, level=0.3):
    """Records of metrics: losses that fall to `level`, and the time of each rank; rank `slow` computes longer."""
    records = []
    for number in range(1, intervals + 1):
        epoch, loss = number / 4, level + 2 / (1 + number)
        compute = [factor if rank == slow else 1.0 for rank in range(ranks)]
        wait = [max(compute) - own + 0.1 for own in compute]
        if not communicate:
            compute, wait = [own + other for own, other in zip(compute, wait, strict=True)], None
        times = {"compute_s": compute, "communicate_s": wait, "data_s": [0.05] * ranks}
        records.append({"kind": "train", "step": 10 * number, "epoch": epoch, "loss": loss, **times})
        if number % 4 == 0:
            accuracy = 0.9 - loss / 10
            records.append({"kind": "test", "step": 10 * number, "epoch": epoch, "loss": loss, "accuracy": accuracy})
    return records


def save(folder, config, moved, step):
    weights = {"w": np.zeros((2, 3), np.float32), "b": np.array([0, moved], np.float32)}
    position = Position(1, 0, step, config.batch_size, config.seed)
    named = "lenet", LENET_RECORD, config.framework, "sgd", "f1", 0.5, ("0", "1")
    made = Checkpoint(position, *named, weights=weights)
    checkpoints.save(folder / "checkpoints", made, keep=3)


def write(tmp_path, *runs):
    """Write the report on these runs; its folder."""
    report.main([*map(str, runs), "--output", str(tmp_path / "out")])
    return tmp_path / "out"


def table(folder):
    """The rows of report.csv in a folder."""
    return read_csv((folder / "report.csv").read_text())


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def report_of(*runs):
    return RunsReport(*finished_runs([*runs]))


def rows(*runs):
    """The rows of report.csv on these runs. No other page is made: charts take most of the time of a report."""
    return read_csv(csv_page(report_of(*runs)))


def lines(*runs):
    """The same rows by (framework, strategy, ranks, devices)."""
    made = rows(*runs)
    found = {tuple(row[name] for name in ("framework", "strategy", "ranks", "devices")): row for row in made}
    assert len(found) == len(made)
    return found


def number(row, name):
    return float(row[name])


def sample(tmp_path):
    """Runs that fill every chart."""
    for framework, speed in (("torch", 1000.0), ("mxnet", 1100.0), ("tensorflow", 1200.0)):
        for repeat in range(2):
            given = {"framework": framework, "accuracy": 0.9 + repeat / 50, **SPEED}
            name = f"{framework}-{repeat}"
            alone = {"images_per_s": speed + 50 * repeat, "metrics": learning(level=0.3 + repeat / 10)}
            make_run(tmp_path / f"{name}-1", 0.0, **alone, **given)
            for ranks in (2, 4):
                for strategy in ("horovod", "a_strategy_with_a_long_name"):
                    place = {"ranks": ranks, "strategy": strategy, "images_per_s": speed * ranks**0.8 + 90 * repeat}
                    place["metrics"] = learning(ranks=ranks, slow=ranks - 1 if repeat else None)
                    make_run(tmp_path / f"{name}-{ranks}-{strategy}", 1e-7 * ranks * repeat, **place, **given)
    return tmp_path
