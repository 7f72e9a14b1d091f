"""What trackers store, read by the libraries that own the formats."""

import sys
from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.events import read_events

from hvdtrain.runs.trackers import scalars
from hvdtrain.runs.trackers.prometheus import Prometheus

CONFIG = {"config": {"lr": 0.1, "set": ["a=b"]}, "runtime": {}, "ranks": 2, "device": "cpu", "controller": "gloo"}
ODD = 'a"b\\c\nd}e{é'
"""A name of a folder or a metric that would break a format which does not escape it."""


def record(step, repeated=False, **values):
    return {"kind": "train", "step": step, "time": 1000.0 + step, "epoch": step / 2, "repeated": repeated, **values}


def test_prometheus_reads_odd_names(tmp_path):
    folder = tmp_path / ODD
    folder.mkdir()
    tracker = Prometheus()
    tracker.start("0123456789abcdef", {**CONFIG, "folder": str(folder), "step": 3})
    tracker.log(record(4, loss=0.5, compute_s=[1.0, 3.0], unknown_s=None, note="text", **{ODD: float("nan")}))
    tracker.end("stopped")
    text = (folder / "metrics.prom").read_text()
    found = {
        (one.name, *(one.labels.get(name) for name in ("kind", "name", "rank", "status")), one.labels["run"]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    odd = ODD.replace("\n", "\\n")
    assert found["hvdtrain_value", "train", "loss", None, None, odd] == 0.5
    assert str(found["hvdtrain_value", "train", odd, None, None, odd]) == "nan"
    assert [found["hvdtrain_rank_value", "train", "compute_s", rank, None, odd] for rank in "01"] == [1.0, 3.0]
    assert found["hvdtrain_step", None, None, None, None, odd] == 4
    assert found["hvdtrain_record_time_seconds", None, None, None, None, odd] == 1004
    statuses = {name: value for (_, _, _, _, name, _), value in found.items() if name}
    assert statuses == {"training": 0, "finished": 0, "stopped": 1, "failed": 0}
    assert [path.name for path in folder.iterdir()] == ["metrics.prom"]


def test_tensorboard_forgets_the_steps_that_are_repeated(tmp_path, monkeypatch):
    """TensorBoard discards what older files have from the step of the start on."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))  # else it imports TensorFlow
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from hvdtrain.runs.trackers.tensorboard import TensorBoard

    folder = tmp_path / "tensorboard"
    for done, (steps, loss) in {0: ((1, 2, 3, 4), 1.0), 2: ((3, 4, 5), 2.0)}.items():
        tracker = TensorBoard()
        tracker.start("0123456789abcdef", {**CONFIG, "folder": str(tmp_path), "step": done})
        for step in steps:
            tracker.log(record(step, loss=loss, compute_s=[1.0, 2.0]))
        tracker.end("finished")
        if not done:
            assert read_events(tmp_path)["train/compute_s_max"] == [2.0] * 4
    shown = EventAccumulator(str(folder))
    shown.Reload()
    found = [(one.step, one.value, one.wall_time) for one in shown.Scalars("train/loss")]
    assert found == [(step, 1.0 if step < 3 else 2.0, 1000.0 + step) for step in range(1, 6)]


def test_mlflow_continues_a_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs hvdtrain[mlflow]")
    for name, value in {"ALLOW_FILE_STORE": "true", "DISABLE_TELEMETRY": "true"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    from mlflow.tracking import MlflowClient

    from hvdtrain.runs.trackers.mlflow import MLflow

    folder = tmp_path / ODD
    folder.mkdir()
    config = {**CONFIG, "folder": str(folder), "step": 0}
    first = MLflow()
    first.start("0123456789abcdef", config)
    for step in (1, 2):
        first.log(record(step, loss=float(step), **{ODD: 1.0}))
    again = MLflow()  # the first one was killed
    again.start("0123456789abcdef", {**config, "config": {"lr": 0.2, "momentum": 0.5}, "step": 1})
    again.log(record(2, repeated=True, loss=9.0))
    again.log(record(3, loss=3.0))
    again.end("stopped")
    other = MLflow()
    other.start("f" * 16, config)
    other.log(record(1, repeated=True, loss=5.0))  # MLflow does not have it yet
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'hvdtrain'")
    runs = {run.data.tags["hvdtrain.run_id"]: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"0123456789abcdef", "f" * 16}
    run = runs["0123456789abcdef"]
    assert run.info.status == "KILLED"
    assert (run.data.params["lr"], run.data.params["momentum"], run.data.params["ranks"]) == ("0.1", "0.5", "2")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    found = [(one.step, one.value, one.timestamp) for one in history]
    assert found == [(step, float(step), 1_000_000 + 1000 * step) for step in (1, 2, 3)]
    assert runs["f" * 16].data.metrics["train/loss"] == 5.0


def test_prometheus_has_no_values_of_ranks_that_are_gone(tmp_path, monkeypatch):
    """In the folder that the node exporter reads."""
    monkeypatch.setenv("HVDTRAIN_PROMETHEUS_DIR", str(tmp_path))

    def of_ranks():
        lines = (tmp_path / "hvdtrain-0123456789abcdef.prom").read_text().splitlines()
        found = [line for line in lines if line.startswith("hvdtrain_rank_value{") and 'name="compute_s"' in line]
        return sorted((line.partition('rank="')[2][0], float(line.split()[-1])) for line in found)

    tracker = Prometheus()
    tracker.start("0123456789abcdef", {**CONFIG, "folder": str(tmp_path / "run"), "step": 3})
    tracker.log(record(4, compute_s=[1.0, 2.0, 3.0]))
    tracker.log(record(5, compute_s=[1.5, None, 3.5]))
    assert of_ranks() == [("0", 1.5), ("2", 3.5)]
    tracker.log(record(6, compute_s=[1.0, 2.0]))
    assert of_ranks() == [("0", 1.0), ("1", 2.0)]


def test_records_of_ranks_that_left_have_numbers():
    assert scalars(record(5, compute_s=[1.0, None, 3.0]))["train/compute_s_mean"] == 2.0
    lost = [{"rank": 1, "why": "was killed by SIGKILL"}]
    members = {"number": 2, "ranks": [0, 2], "hosts": ["a", "b"], "lost": lost, "joined": [], "seconds": 0.25}
    shown = scalars({**record(5), "kind": "members", **members})
    expected = {"number": 2.0, "ranks": 2.0, "lost": 1.0, "joined": 0.0, "seconds": 0.25, "epoch": 2.5}
    assert shown == {f"members/{name}": value for name, value in expected.items()}
    shards = {"counts": [3, None, 1], "moved": [[1, 1, 0]], "why": "rank 1 is lost"}
    assert scalars({**record(5), "kind": "shards", **shards})["shards/counts_max"] == 3.0
