"""What trackers are told, and what they store, read by the libraries that own the formats."""

import json
import sys
import threading
import time
from types import ModuleType

import pytest
from support.errors import refused
from support.events import read_events
from support.jobs import wait_for
from support.trackers import install

from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.runs import trackers
from hvdtrain.runs.trackers import scalars, tracking
from hvdtrain.runs.trackers.tracking import Delivery, Tracking

CONTENT = {
    "id": "0123456789abcdef",
    "config": {"data": "https://user:word@host/data", "lr": 0.1},
    "runtime": {"on_end": "curl https://host/hook", "name": "run"},
}


class Tracker:
    """Collects what it is told; `fail` is called before each call with its name."""

    def __init__(self, fail=lambda name: None):
        self.fail, self.told = fail, []

    def start(self, *given):
        self.fail("start")
        self.told.append(given)

    def log(self, record):
        self.fail("log")
        self.told.append(dict(record))
        record.clear()

    def end(self, status):
        self.fail("end")
        self.told.append(status)


@pytest.fixture
def tracker(monkeypatch):
    """The tracker of any name."""
    tracker = Tracker()
    monkeypatch.setattr(trackers, "load", lambda name: lambda: tracker)
    return tracker


def test_records_that_the_run_had_are_marked_by_their_epoch(tmp_path, tracker):
    lines = [("train", 5, 1.0), ("train", 10, 2.0), ("test", 10, 2.0), ("train", 4, 1.5)]
    text = "".join(json.dumps({"kind": kind, "step": step, "epoch": epoch}) + "\n" for kind, step, epoch in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "tr')
    followed = Tracking(["own"], tmp_path, CONTENT, 4)
    with followed.until_end():
        for kind, step, epoch in [("train", 4, 1.5), ("train", 6, 2.0), ("test", 6, 2.0), ("test", 9, 3.0)]:
            followed.log({"kind": kind, "step": step, "epoch": epoch})
        followed.log({"kind": "ranks", "step": 1, "evaluation_s": [1.0, 2.0]})
    (run_id, config), *logged, ended = tracker.told
    assert run_id == CONTENT["id"]
    without_secrets = {"config": {"data": "https://host/data", "lr": 0.1}, "runtime": {"name": "run"}}
    assert config == {**CONTENT, **without_secrets, "folder": str(tmp_path), "step": 4}
    assert [one["repeated"] for one in logged] == [True, False, True, False, False]
    assert ended == "finished"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Stopped("asked to stop"), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (TrainingError("not finite"), "failed"),
        (RuntimeError("lost a rank"), "failed"),
    ],
)
def test_how_a_run_ended(tmp_path, tracker, error, status):
    followed = Tracking(["own"], tmp_path, CONTENT, 0)
    with pytest.raises(type(error)), followed.until_end():
        raise error
    assert tracker.told[-1] == status


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tensorbord", "no such tracker (did you mean tensorboard?); choose from broken, hanging, killing, mlflow, "),
        ("recordr", "no such tracker (did you mean recorder?)"),
        ("broken", "it cannot be imported (AttributeError: "),
    ],
)
def test_an_unusable_tracker(tmp_path, monkeypatch, name, reason):
    """Of a package of the user's, whose names are known beside hvdtrain's."""
    monkeypatch.syspath_prepend(install(tmp_path))
    refused(lambda: trackers.check([name]), f"--tracker {name}: {reason}")
    trackers.check(["recorder", "tensorboard"])


@pytest.mark.parametrize(("name", "library"), [("mlflow", "mlflow"), ("tensorboard", "tensorboardX")])
def test_a_tracker_whose_library_is_missing(monkeypatch, name, library):
    monkeypatch.setenv(*trackers.SILENT["mlflow"])
    for module in [known for known in sys.modules if known.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"hvdtrain.runs.trackers.{name}", raising=False)
    with pytest.raises(UserError, match=rf"{library}.*; pip install 'hvdtrain\[{name}\]'"):
        trackers.check([name])


def test_names_are_checked_where_rank_0_runs_only(monkeypatch):
    from hvdtrain.config.options import RuntimeOptions
    from hvdtrain.training.train import check_trackers

    check_trackers(RuntimeOptions())
    with pytest.raises(UserError, match="no such tracker"):
        check_trackers(RuntimeOptions(tracker=("tensorboard", "other")))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_trackers(RuntimeOptions(tracker=("other",)))


def deliver(make, records, within_s=30.0, reached=None):
    """reached: an event that is awaited before the end is."""
    sent = Delivery("own", make, "1" * 16, {"ranks": 2})
    for record in records:
        sent.log(record)
    sent.end("finished")
    assert not reached or reached.wait(30)
    sent.join(time.monotonic() + within_s)


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_everything_arrives_in_order(caplog):
    tracker, records = Tracker(), [{"kind": "train", "step": step} for step in range(100)]
    deliver(lambda: tracker, records)
    assert records[0] == {"kind": "train", "step": 0}, "a tracker gets a copy"
    assert tracker.told == [("1" * 16, {"ranks": 2}), *records, "finished"]
    assert not messages(caplog)


@pytest.mark.parametrize("hangs_in", ["start", "log", "end"])
def test_a_tracker_that_hangs_is_left_behind(caplog, hangs_in):
    reached, released = threading.Event(), threading.Event()
    tracker = Tracker(lambda name: (reached.set(), released.wait()) if name == hangs_in else None)
    count = tracking.MAX_WAITING + 500
    records = [{"kind": "train", "step": step} for step in range(count if hangs_in != "end" else 9)]
    deliver(lambda: tracker, records, 0.01, reached)
    assert tracking.hanging() == ["own"]
    released.set()
    found = messages(caplog)
    if hangs_in == "end":
        assert found == ["tracker own lacks up to 1 record(s) of this run: it does not respond"]
    else:
        assert found[0].startswith(f"tracker own: does not accept records as fast as they come: {count - 500} wait")
        assert found[1].endswith("record(s) of this run: it does not respond") and len(found) == 2
        assert count - 1 <= int(found[1].split()[5]) <= count + 1
    wait_for(lambda: not tracking.hanging(), 30)


@pytest.mark.parametrize(
    ("raises_in", "lost"),
    [
        ("making", "it gets no records"),
        ("start", "it gets no records"),
        ("log", "that record is lost"),
        ("end", "it may lack the end"),
    ],
)
def test_what_a_tracker_raises_is_logged_once(caplog, raises_in, lost):
    def fail(name):
        if name == raises_in:
            raise SystemExit("bad \x1b[31m value")

    def make():
        fail("making")
        return Tracker(fail)

    deliver(make, [{"kind": "train", "step": step} for step in range(7)])
    where = "start" if raises_in == "making" else raises_in
    first = f"tracker own: {where} raised SystemExit: bad \\x1b[31m value ({lost}); training continues"
    counted = [] if raises_in == "end" else ["tracker own lacks up to 7 record(s) of this run"]
    assert messages(caplog) == [first, *counted]


def test_end_waits_for_all_trackers_together(tmp_path, monkeypatch, tracker):
    released, until, join = threading.Event(), set(), Delivery.join
    tracker.fail = lambda name: released.wait() if name == "log" else None
    monkeypatch.setattr(Delivery, "join", lambda self, deadline: (until.add(deadline), join(self, deadline)))
    monkeypatch.setattr(tracking, "END_S", 0.3)
    followed, began = Tracking(["one", "two", "three"], tmp_path, CONTENT, 0), time.monotonic()
    with followed.until_end():
        followed.log({"kind": "train", "step": 1})
    assert time.monotonic() - began >= 0.3 and len(until) == 1
    released.set()


CONFIG = {"config": {"lr": 0.1, "set": ["a=b"]}, "runtime": {}, "ranks": 2, "device": "cpu", "controller": "gloo"}
ODD = 'a"b\\c\nd}e{é'
"""A name of a folder or a metric that would break a format which does not escape it."""


def record(step, repeated=False, **values):
    return {"kind": "train", "step": step, "time": 1000.0 + step, "epoch": step / 2, "repeated": repeated, **values}


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


def test_records_of_ranks_that_left_have_numbers():
    assert scalars(record(5, compute_s=[1.0, None, 3.0]))["train/compute_s_mean"] == 2.0
    lost = [{"rank": 1, "why": "was killed by SIGKILL"}]
    members = {"number": 2, "ranks": [0, 2], "hosts": ["a", "b"], "lost": lost, "joined": [], "seconds": 0.25}
    shown = scalars({**record(5), "kind": "members", **members})
    expected = {"number": 2.0, "ranks": 2.0, "lost": 1.0, "joined": 0.0, "seconds": 0.25, "epoch": 2.5}
    assert shown == {f"members/{name}": value for name, value in expected.items()}
    shards = {"counts": [3, None, 1], "moved": [[1, 1, 0]], "why": "rank 1 is lost"}
    assert scalars({**record(5), "kind": "shards", **shards})["shards/counts_max"] == 3.0
