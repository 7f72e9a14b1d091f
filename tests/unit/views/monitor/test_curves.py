"""Records that are followed while they are written, and curves of many points."""

import json

from hvdtrain.views.monitor import last_records as last_records_file
from hvdtrain.views.monitor.curves import Curve, CurveReader, thinned
from hvdtrain.views.monitor.last_records import BLOCK_BYTES, last_records
from hvdtrain.views.monitor.messages import last_messages


def line(kind, step, **values):
    return json.dumps({"kind": kind, "step": step, "epoch": step / 10, **values}) + "\n"


def test_a_growing_file_is_read_from_where_it_was_left(tmp_path):
    path, reader = tmp_path / "metrics.jsonl", CurveReader(tmp_path)
    reader.read()
    first, second = line("train", 1, loss=2.0), line("train", 2, loss=1.0)
    path.write_text(first + second[:20])
    reader.read()
    assert reader.curve("loss").values == [2.0]
    with open(path, "a") as file:
        file.write(second[20:])
    reader.read()
    assert reader.curve("loss") == ([0.1, 0.2], [1, 2], [2.0, 1.0])


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    path, reader = tmp_path / "metrics.jsonl", CurveReader(tmp_path)
    path.write_text(line("train", 1, loss=2.0) + line("train", 2, loss=3.0))
    reader.read()
    path.write_text(line("train", 1, loss=5.0))
    reader.read()
    assert reader.curve("loss").values == [5.0]


def test_records_of_repeated_steps_are_replaced(tmp_path):
    reader = CurveReader(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("".join(line("train", step, loss=step) for step in (1, 2, 3, 2)))
    reader.read()
    assert reader.curve("loss").steps == [1, 2]


def test_parts_need_numbers_of_all_ranks(tmp_path):
    reader = CurveReader(tmp_path)
    good = line("train", 1, compute_s=[1.0, 2.0], communicate_s=None, data_s=[0.0, 0.1])
    (tmp_path / "metrics.jsonl").write_text(good + line("train", 2, compute_s=[1.0, "x"], data_s=3))
    reader.read()
    (found,) = reader.parts()
    assert (found["compute_s"], found["communicate_s"], found["data_s"]) == ([1.0, 2.0], [], [0.0, 0.1])


def test_a_thinned_curve_keeps_its_extremes_and_ends():
    values = [0.0] * 10_000
    values[5_001], values[7_003] = 9.0, -9.0
    found = thinned(Curve([float(i) for i in range(10_000)], list(range(10_000)), values), 200)
    assert len(found.values) <= 202
    assert {5_001, 7_003, 0, 9_999} <= set(found.steps)
    assert found.steps == sorted(found.steps)


def test_the_newest_records_are_found_from_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    later = "".join(line("train", step, loss=step) for step in range(2, 400))
    assert len(later) > BLOCK_BYTES
    path.write_text(line("test", 1, accuracy=0.5) + later + '{"kind": "train", "step": 400, "lo')
    found = last_records(path)
    assert (found["test"]["accuracy"], found["train"]["step"]) == (0.5, 399)
    assert last_records(tmp_path / "missing") == {}


def test_a_line_that_looks_like_many_records_is_read_once(tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr(last_records_file.json, "loads", lambda text: parsed.append(text) or {})
    (tmp_path / "metrics.jsonl").write_text('{"x": [' + '{"kind": "train"}, ' * 500)
    assert last_records(tmp_path / "metrics.jsonl") == {}
    assert len(parsed) == 1


def test_messages_of_all_ranks_are_in_the_order_of_time(tmp_path):
    (tmp_path / "logs").mkdir()
    lines = [
        "2026-05-01 14:03:1{0},000 {1} rank {2}\x1b[31m",
        "2026-05-01 14:03:1{3},000 WARNING w",
        "Traceback",
        "2026",
    ]
    for rank, times in enumerate([(3, 5), (2, 4)]):
        text = "\n".join(lines).format(times[0], "INFO", rank, times[1])
        (tmp_path / "logs" / f"rank-{rank}.log").write_text(text)
    found = last_messages(tmp_path, 3)
    assert [(one.rank, one.time[-1]) for one in found] == [(0, "3"), (1, "4"), (0, "5")]
    assert found[0].text == "rank 0\\x1b[31m"
    assert len(last_messages(tmp_path, 10, "WARNING")) == 2
