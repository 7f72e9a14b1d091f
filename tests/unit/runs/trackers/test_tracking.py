"""What trackers are told of a run: its id and options without secrets, and which records are repeated."""

import json
import sys
import threading
import time

import pytest
from support.errors import refused
from support.trackers import install

from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.runs import trackers
from hvdtrain.runs.trackers import tracking
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


@pytest.mark.parametrize(
    ("name", "library"), [("mlflow", "mlflow"), ("tensorboard", "tensorboardX"), ("prometheus", "prometheus_client")]
)
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


def deliver(make, records, within_s=30.0):
    sent = Delivery("own", make, "1" * 16, {"ranks": 2})
    for record in records:
        sent.log(record)
    sent.end("finished")
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
    released = threading.Event()
    tracker = Tracker(lambda name: released.wait() if name == hangs_in else None)
    count = tracking.MAX_WAITING + 500
    records = [{"kind": "train", "step": step} for step in range(count if hangs_in != "end" else 9)]
    deliver(lambda: tracker, records, 0.2)
    assert tracking.hanging() == ["own"]
    released.set()
    found = messages(caplog)
    if hangs_in == "end":
        assert found == ["tracker own lacks up to 1 record(s) of this run: it does not respond"]
    else:
        assert found[0].startswith(f"tracker own: does not accept records as fast as they come: {count - 500} wait")
        assert found[1].endswith("record(s) of this run: it does not respond") and len(found) == 2
        assert count - 1 <= int(found[1].split()[5]) <= count + 1


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
