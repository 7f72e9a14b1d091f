"""A tracker that raises, blocks or is slow costs records, and nothing else."""

import threading
import time

import pytest

from hvdtrain.runs.trackers import delivery
from hvdtrain.runs.trackers.delivery import Delivery


class Tracker:
    """Collects what it is told; `fail` is called before each call with its name."""

    def __init__(self, fail=lambda name: None):
        self._fail, self.told = fail, []

    def start(self, *given):
        self._fail("start")
        self.told.append(given)

    def log(self, record):
        self._fail("log")
        self.told.append(dict(record))
        record.clear()

    def end(self, status):
        self._fail("end")
        self.told.append(status)


def deliver(tracker, records, within_s=5.0):
    """Hand records to a tracker, and end; returns the seconds that it took until the end."""
    sent = Delivery("own", lambda: tracker, "1" * 16, {"ranks": 2})
    began = time.monotonic()
    for record in records:
        sent.log(record)
    sent.end("finished")
    sent.join(time.monotonic() + within_s)
    return time.monotonic() - began


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_everything_arrives_in_order(caplog):
    tracker, records = Tracker(), [{"kind": "train", "step": step} for step in range(100)]
    deliver(tracker, records)
    assert tracker.told == [
        ("1" * 16, {"ranks": 2}),
        *({"kind": "train", "step": step} for step in range(100)),
        "finished",
    ]
    assert records[0] == {"kind": "train", "step": 0}, "a tracker gets a copy"
    assert not messages(caplog)


@pytest.mark.parametrize("hangs_in", ["start", "log", "end"])
def test_a_tracker_that_hangs_is_left_behind(caplog, hangs_in):
    released = threading.Event()
    tracker = Tracker(lambda name: released.wait() if name == hangs_in else None)
    count = delivery.WAITING_RECORDS + 500
    took_s = deliver(
        tracker, [{"kind": "train", "step": step} for step in range(count if hangs_in != "end" else 9)], 0.2
    )
    assert took_s < 3
    assert delivery.hanging() == ["own"]
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
    [("start", "it gets no records"), ("log", "that record is lost"), ("end", "it may lack the end")],
)
def test_what_a_tracker_raises_is_logged_once(caplog, raises_in, lost):
    def fail(name):
        if name == raises_in:
            raise SystemExit("bad \x1b[31m value")

    deliver(Tracker(fail), [{"kind": "train", "step": step} for step in range(7)])
    first = f"tracker own: {raises_in} raised SystemExit: bad \\x1b[31m value ({lost}); training continues"
    counted = [] if raises_in == "end" else ["tracker own lacks up to 7 record(s) of this run"]
    assert messages(caplog) == [first, *counted]


def test_a_tracker_that_cannot_be_made(caplog):
    sent = Delivery("own", lambda: 1 / 0, "1" * 16, {})
    sent.end("failed")
    sent.join(time.monotonic() + 5)
    assert messages(caplog) == [
        "tracker own: start raised ZeroDivisionError: division by zero (it gets no records); training continues"
    ]
