"""What a run says about its data: the time that steps wait for it, and rows that are skipped."""

from __future__ import annotations

import time

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.datasets.rows import RowError
from hvdtrain.interfaces import Position
from hvdtrain.system.phases import DATA, FORWARD, LOOP, phases
from hvdtrain.training import batches
from hvdtrain.training.batches import BadRows
from hvdtrain.training.reporting import DataFigures
from hvdtrain.training.timing import Throughput


def test_only_what_matters_is_shown() -> None:
    assert DataFigures({0: 0.01, 1: 0.04}, 2).texts() == []
    waited = "rank 3 waited for data 34% of the time (raise --workers, now 2)"
    assert DataFigures({0: 0.1, 3: 0.34}, 2).texts() == [waited]
    assert "--workers" not in DataFigures({0: 0.1, 1: 0.34}, None).texts()[0]
    assert DataFigures({0: 0.0}, 0, train=2).texts() == ["skipped 2 bad train row(s) and 0 of test (see logs)"]


def test_wait_is_a_share_of_the_time_in_steps() -> None:
    throughput, at = Throughput(), Position(step=0)
    phases.start_run(LOOP, lambda begins: None)
    throughput.epoch_started(at)
    assert throughput.take_wait_share() == throughput.wait_share == 0
    for step in (1, 2):
        phases.begin(DATA)
        time.sleep(0.01)
        phases.begin(FORWARD)
        at = Position(step=step, rows_in_epoch=step)
        interval = throughput.interval(at)
        assert 0.01 <= interval["data_wait_s"] <= interval["outside_s"]
    share = throughput.take_wait_share()
    assert 0 < share <= 1 and share == throughput.wait_share
    assert throughput.take_wait_share() == 0, "it begins anew"
    assert throughput.wait_share == share


def test_a_bad_row_is_named_once_and_counted_once(monkeypatch) -> None:
    logged = []
    monkeypatch.setattr(batches, "log_to_file", lambda level, text: logged.append(text))
    rows = BadRows()
    for part in ("train", "train", "test"):
        rows.add(part, [5, 8, 3], {2: RowError("3.png (row 3): cannot be read", "correct it")})
    assert logged == [f"skipped a row of {part}: 3.png (row 3): cannot be read" for part in ("train", "test")]
    assert rows.count(SingleProcess()) == {"train": 1, "validation": 0, "test": 1}
