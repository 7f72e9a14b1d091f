"""What a report reads of metrics.jsonl: learning curves, and the time of each rank."""

import json

import pytest
from support.report import make_run

from hvdtrain.runs.step_times import StepTime
from hvdtrain.views.report.history import read_history


def record(step, **values):
    return {"kind": "train", "step": step, "epoch": step / 10, "loss": 1.0, **values}


def times(compute, communicate, data):
    return {"compute_s": compute, "communicate_s": communicate, "data_s": data}


def test_curves_of_damaged_lines(tmp_path):
    lines = [
        json.dumps(record(1, loss=2.0)), '{"kind": "train", "st', "[]", "\x00", json.dumps(record(2, loss=None)),
        json.dumps(record(3, loss="1")), '{"kind": "train", "step": 4, "epoch": 0.4, "loss": NaN}',
        json.dumps(record(5, loss=1.5)), json.dumps({"kind": "test", "step": 5, "epoch": 0.5, "accuracy": 0.5}),
        json.dumps(record(6, loss=10**400)), json.dumps(record(7, loss=1.0))[:-3],
    ]  # fmt: skip
    history = read_history(make_run(tmp_path / "run", metrics=lines))
    assert history.train_loss == [(0.1, 2.0), (0.5, 1.5)]
    assert (history.test_loss, history.test_accuracy, history.ranks) == ([], [(0.5, 0.5)], [])


def test_a_run_without_metrics_has_no_history(tmp_path):
    assert read_history(tmp_path) == ([], [], [], [])
    (tmp_path / "metrics.jsonl").mkdir()
    assert read_history(tmp_path) == ([], [], [], [])


def test_times_are_sums_without_the_first_interval(tmp_path):
    metrics = [record(number, **times([1.0, 9.0], [8.0, 0.5], [0.5, 0.25])) for number in (1, 2, 3)]
    assert read_history(make_run(tmp_path / "run", metrics=metrics)).ranks == [
        StepTime(2.0, 16.0, 1.0), StepTime(18.0, 1.0, 0.5),
    ]  # fmt: skip


def test_where_communication_is_not_known_it_counts_as_computing(tmp_path):
    metrics = [record(number, **times([3.0, 4.0], None, [0.0, 0.0])) for number in (1, 2)]
    metrics.append(record(3, **times([1.0, 1.0], [2.0, 2.0], [0.0, 0.0])))
    assert read_history(make_run(tmp_path / "run", metrics=metrics)).ranks == [
        StepTime(6.0, None, 0.0), StepTime(7.0, None, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    [
        times([1.0], [1.0, 2.0], [1.0, 2.0]), times([1.0, -2.0], [1.0, 2.0], [1.0, 2.0]), times("12", [1, 2], [1, 2]),
        times([1.0, None], [1.0, 2.0], [1.0, 2.0]), times([1.0, 2.0], [1.0, 2.0], None), times([], [], []),
        times([1.0, 2.0, 3.0], [0.0] * 3, [0.0] * 3), {},
    ],
)  # fmt: skip
def test_records_with_other_times_are_left_out(tmp_path, odd):
    """Also those of other ranks, with which the run began."""
    good = times([1.0, 2.0], [1.0, 0.0], [0.0, 0.0])
    metrics = [record(1, **good), record(2, **odd), record(3, **good), record(4, **good)]
    ranks = read_history(make_run(tmp_path / "run", metrics=metrics)).ranks
    assert ranks == [StepTime(2.0, 2.0, 0.0), StepTime(4.0, 0.0, 0.0)]
