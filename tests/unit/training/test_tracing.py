"""A timeline of a job whose ranks change while it records."""

import json
from types import SimpleNamespace

import pytest

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.interfaces.learner import Position
from hvdtrain.system.phases import LOOP, STEP, phases
from hvdtrain.training.tracing import Tracing


class Rank(SingleProcess):
    """A process whose collectives are counted."""

    def __init__(self):
        self.gathered = 0

    def gather(self, value):
        self.gathered += 1
        return [value]


@pytest.fixture
def make(tmp_path):
    phases.start_run(LOOP, lambda _: None)

    def made():
        run = SimpleNamespace(
            runtime=SimpleNamespace(timeline="4:8"), last_step=20, folder=tmp_path,
            config=SimpleNamespace(framework="torch"), learner=SimpleNamespace(device="cpu"), group=Rank(),
            is_rank_0=True,
        )  # fmt: skip
        return Tracing(run, lambda _: None), run.group

    yield made
    phases.stop_recording()


def train(tracing, first, last):
    """Make the steps after `first`, up to `last`."""
    for step in range(first + 1, last + 1):
        phases.begin(STEP)
        phases.begin(LOOP)
        tracing.step_ended(Position(step=step))


def recorded(folder):
    (path,) = folder.glob("timeline-*.json")
    events = json.loads(path.read_text())["traceEvents"]
    return path.name, [event["args"]["step"] for event in events if event.get("cat") == "step"]


@pytest.mark.parametrize(
    ("lost_at", "first", "exchanges"), [(2, 4, 3), (3, 4, 3), (5, 5, 3), (7, 7, 3), pytest.param(9, 4, 0, id="written")]
)
def test_recording_begins_again_when_ranks_change_unless_the_timeline_is_written(
    make, tmp_path, lost_at, first, exchanges
):
    """A rank that joins does the same from there on: as many exchanges with the others."""
    (survivor, group), (new, other) = make(), make()
    survivor.started(Position())
    train(survivor, 0, lost_at)
    survivor.renewed(Position(step=lost_at), None)
    group.gathered = 0
    for rank in (survivor, new):
        rank.started(Position(step=lost_at))
        train(rank, lost_at, 12)
        assert recorded(tmp_path) == (f"timeline-{first}-8.json", list(range(first, 8)))
    assert group.gathered == other.gathered == exchanges
