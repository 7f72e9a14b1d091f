"""The record of a run's end, as it is written and as it may be found."""

import json

import pytest

from hvdtrain.errors import Stopped, TrainingError
from hvdtrain.system.run_end import RunEnd

FAILED = RunEnd("failed", 137, "rank 1 on node1 was killed by SIGKILL", 1, "node1", 12.5)


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
    (tmp_path / "end.json").write_text(json.dumps({**FAILED._asdict(), **change}))
    assert RunEnd.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "[1", '"failed"', "7", "{}", "null"])
def test_other_content_is_no_end(tmp_path, text):
    (tmp_path / "end.json").write_text(text)
    assert RunEnd.read(tmp_path) is None


def test_the_record_of_a_later_version_is_read(tmp_path):
    (tmp_path / "end.json").write_text(json.dumps({**FAILED._asdict(), "attempts": 3}))
    assert RunEnd.read(tmp_path) == FAILED


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (Stopped("rank 1 was asked to stop"), ("stopped", 75, "rank 1 was asked to stop", None, "")),
        (TrainingError("rank 3: loss is not finite"), ("failed", 1, "rank 3: loss is not finite", 3, "")),
        (TrainingError("the disk is full"), ("failed", 1, "the disk is full", 0, "node0")),
        (KeyError("x"), ("failed", 1, "KeyError: 'x'", 0, "node0")),
        (KeyboardInterrupt(), ("stopped", 130, "interrupted", None, "")),
    ],
)
def test_errors_of_a_rank(error, end):
    assert RunEnd.of_exception(error, 0, "node0")[:5] == end
