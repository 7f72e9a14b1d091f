"""The record of a run's end, as it is written and as it may be found."""

import json

import pytest

from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.system.rank_info import host_name
from hvdtrain.system.run_end import Failure, RunEnd

FAILED = RunEnd(
    "failed", 137, Failure("rank 1 on node1 was killed by SIGKILL", rank=1, host="node1", stands_alone=True), 12.5
)


def test_what_is_written_is_read(tmp_path):
    FAILED.write(tmp_path)
    assert RunEnd.read(tmp_path) == FAILED
    RunEnd("finished").write(tmp_path, replace=False)
    assert RunEnd.read(tmp_path) == FAILED, "the first one stays"
    RunEnd.remove(tmp_path)
    assert RunEnd.read(tmp_path) is None


def test_nothing_is_written_where_there_is_no_folder(tmp_path):
    FAILED.write(tmp_path / "gone")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"status": "unknown"}, {"status": ["failed"]}, {"exit_status": "1"}, {"exit_status": True}, {"reason": None},
        {"rank": 1.5}, {"host": 3}, {"time": "now"}, {"time": float("inf")}, {"time": 10**400},
    ],
)  # fmt: skip
def test_values_that_are_never_written_are_no_end(tmp_path, change):
    (tmp_path / "end.json").write_text(json.dumps({**FAILED.record(), **change}))
    assert RunEnd.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "[1", '"failed"', "7", "{}", "null"])
def test_other_content_is_no_end(tmp_path, text):
    (tmp_path / "end.json").write_text(text)
    assert RunEnd.read(tmp_path) is None


def test_the_record_of_a_later_version_is_read(tmp_path):
    (tmp_path / "end.json").write_text(json.dumps({**FAILED.record(), "attempts": 3}))
    assert RunEnd.read(tmp_path) == FAILED


@pytest.mark.parametrize(
    ("error", "status", "rank", "host"),
    [
        (Stopped("rank 1 was asked to stop", rank=1), ("stopped", 75), None, ""),
        (TrainingError("rank 3: loss is not finite", rank=3, step=7), ("failed", 1), 3, ""),
        (TrainingError("the disk is full"), ("failed", 1), 0, host_name()),
        (UserError("--lr 0: must be above 0", option="lr"), ("failed", 2), 0, host_name()),
        (KeyError("x"), ("failed", 1), 0, host_name()),
        (KeyboardInterrupt(), ("stopped", 130), None, ""),
    ],
)
def test_errors_of_a_rank(error, status, rank, host, tmp_path):
    end = RunEnd.of_exception(error).on_rank(0, size=4)
    assert (end[:2], end.rank, end.host) == (status, rank, host)
    end.write(tmp_path)
    read = RunEnd.read(tmp_path)
    assert (read[:2], read.reason, read.rank, read.host) == (end[:2], end.reason, end.rank, end.host)
    assert read.failure.option == getattr(error, "option", "")
    assert read.failure.step == getattr(error, "step", None)


def test_a_reason_names_the_rank_once():
    assert RunEnd.of_exception(ValueError("x")).on_rank(0, size=1).reason == "ValueError: x"
    assert RunEnd.of_exception(ValueError("x")).on_rank(2, size=4).reason == f"rank 2 on {host_name()}: ValueError: x"
    assert RunEnd.of_exception(TrainingError("rank 3: x", rank=3)).on_rank(2, size=4).reason == "rank 3: x"
