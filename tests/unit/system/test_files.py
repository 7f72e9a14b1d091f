"""Files of runs that others may have written: of any size, and of any kind."""

from __future__ import annotations

import os

import pytest

from hvdtrain.config.sources import recorded
from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.records import Record
from hvdtrain.system.files import LINES_BYTES, RECORD_BYTES, read_json
from hvdtrain.system.run_steps import last_step


def test_a_record_that_is_too_large_or_no_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    for make in (lambda: path.touch(), lambda: os.mkfifo(path)):
        make()
        if path.is_file():
            os.truncate(path, RECORD_BYTES + 1)
        with pytest.raises(OSError, match=r"larger than 16 MiB|not a regular file"):
            read_json(path)
        with pytest.raises(UserError, match=r"no valid config\.json"):
            recorded(tmp_path)
        with pytest.raises(UserError, match="cannot be read"):
            Record.read(path).require()
        path.unlink()
    heartbeat = tmp_path / "heartbeats" / "rank-0.json"
    heartbeat.parent.mkdir()
    os.mkfifo(heartbeat)
    assert last_step(tmp_path, 0) is None
    metrics_file = tmp_path / "metrics.jsonl"
    metrics_file.touch()
    os.truncate(metrics_file, LINES_BYTES + 1)
    with pytest.raises(OSError, match="larger than 1024 MiB"):
        metrics.read(metrics_file)
