"""metrics.jsonl and TensorBoard events, also on a full disk; what is read of them meanwhile; and which rank is slow."""

import json
import resource
import tracemalloc

import msgspec
import pytest
from support.events import read_events
from support.report import make_run

from hvdtrain.runs import metrics
from hvdtrain.runs.changes import Changes
from hvdtrain.runs.history import HistoryReader, RankTimes
from hvdtrain.runs.metrics import BLOCK_BYTES, MetricsReader, last_records
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.step_times import NO_TIME, StepSeconds, slow_ranks, to_record
from hvdtrain.runs.trackers.tensorboard import TensorBoard


def test_records_lost_on_a_full_disk_are_logged_once(tmp_path, caplog):
    """A limit on the size of files takes the place of a full disk, which only root can mount."""
    before, events = resource.getrlimit(resource.RLIMIT_FSIZE), TensorBoard()
    events.start("0123456789abcdef", {"folder": str(tmp_path), "step": 0})
    writer = metrics.MetricsWriter(tmp_path, events.log)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
        for step in range(1000):
            writer.write("train", step, loss=float(step))
        writer.close()
        events.end("finished")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    messages = [record.getMessage() for record in caplog.records]
    assert sum(": training continues without it" in line for line in messages) == 2
    assert sum("cannot be written (File too large)" in line for line in messages) == 2
    assert sum("record(s) that the disk did not accept" in line for line in messages) == 1 and len(messages) == 3
    losses = read_events(tmp_path)["train/loss"]
    assert 100 < len(losses) < 1000 and losses == list(range(len(losses)))


def test_repeated_steps_are_recognized_by_their_epoch(tmp_path):
    """A resume with another batch size renumbers steps, so that a number may come again, or a lower one follow."""
    path = tmp_path / "metrics.jsonl"
    written = [(5, 1.0), (10, 2.0), (15, 3.0), (4, 2.0), (5, 2.5), (40, 3.0)]
    lines = [json.dumps({"kind": "test", "step": step, "epoch": at, "loss": at}) + "\n" for step, at in written]
    path.write_text("".join(lines) + '{"kind": "te')  # the last line of a killed job
    assert [record["step"] for record in metrics.read(path)] == [5, 4, 5, 40]


def line(kind, step, **values):
    return json.dumps({"kind": kind, "step": step, "epoch": step / 10, **values}) + "\n"


def test_hashes_are_those_of_the_steps_that_the_run_continued(tmp_path):
    """A resumed run repeats steps, and may end at other weights; texts that are no hash are left out."""
    saved = [(10, "0" * 16), (20, "1" * 16), (20, "2" * 16), (30, "no hash"), (40, None), (50, 7)]
    lines = [line("checkpoint", step, parameters=parameters, time=step) for step, parameters in saved]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + line("train", 50, parameters="3" * 16))
    hashes = HistoryReader(tmp_path / "metrics.jsonl").read().hashes()
    assert [(*hashes,), *((saved.parameters, saved.time) for saved in hashes.values())] == [
        (10, 20), ("0" * 16, 10), ("2" * 16, 20),
    ]  # fmt: skip


def test_a_growing_file_is_read_from_where_it_was_left(tmp_path):
    path, reader = tmp_path / "metrics.jsonl", HistoryReader(tmp_path / "metrics.jsonl")
    reader.read()
    first, second = line("train", 1, loss=2.0), line("train", 2, loss=1.0)
    path.write_text(first + second[:20])
    reader.read()
    assert reader.curves()["train loss"].values == [2.0]
    with open(path, "a") as file:
        file.write(second[20:])
    reader.read()
    assert reader.curves()["train loss"] == ([0.1, 0.2], [1, 2], [2.0, 1.0])
    with open(path, "a") as file:
        file.write(line("train", 1, loss=4.0))
    assert reader.read().curves()["train loss"].values == [4.0], "a step that was repeated"
    path.write_text(line("train", 1, loss=5.0))
    assert reader.read().curves()["train loss"].values == [5.0], "a file that was replaced is read again"


def test_the_newest_records_are_found_from_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    later = "".join(line("train", step, loss=step) for step in range(2, 400))
    assert len(later) > BLOCK_BYTES
    path.write_text(line("test", 1, accuracy=0.5) + later + '{"kind": "train", "step": 400, "lo')
    newest = last_records(path)
    assert (newest["test"]["accuracy"], newest["train"]["step"]) == (0.5, 399)
    assert last_records(tmp_path / "missing") == {}


def test_a_line_that_looks_like_many_records_is_read_once(tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr(metrics, "decoded", lambda text: parsed.append(text) or {})
    (tmp_path / "metrics.jsonl").write_text('{"x": [' + '{"kind": "train"}, ' * 500)
    assert last_records(tmp_path / "metrics.jsonl") == {}
    assert len(parsed) == 1


def run_of(tmp_path, records):
    return RecordedRun(make_run(tmp_path / "run", metrics=records))


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
    run = run_of(tmp_path, lines)
    assert {name: (curve.epochs, curve.values) for name, curve in run.curves.items()} == {
        "train loss": ([0.1, 0.5], [2.0, 1.5]), "test loss": ([], []), "test accuracy": ([0.5], [0.5]),
    }  # fmt: skip
    assert run.rank_times == {}


def test_where_communication_is_not_known_it_counts_as_computing(tmp_path):
    records = [record(number, **times([3.0, 4.0], None, [0.0, 0.0])) for number in (1, 2)]
    records.append(record(3, **times([1.0, 1.0], [2.0, 2.0], [0.0, 0.0])))
    assert run_of(tmp_path, records).rank_times == {0: StepSeconds(6.0, None, 0.0), 1: StepSeconds(7.0, None, 0.0)}


@pytest.mark.parametrize(
    "odd",
    [
        times([1.0], [1.0, 2.0], [1.0, 2.0]), times([1.0, -2.0], [1.0, 2.0], [1.0, 2.0]), times("12", [1, 2], [1, 2]),
        times([1.0, True], [1.0, 2.0], [1.0, 2.0]), times([1.0, 2.0], [1.0, 2.0], None), times([], [], []),
        times([1.0, 2.0, 3.0], [0.0] * 3, [0.0] * 3), {},
    ],
)  # fmt: skip
def test_records_with_other_times_are_left_out(tmp_path, odd):
    """Also those of other ranks, with which the run began."""
    good = times([1.0, 2.0], [1.0, 0.0], [0.0, 0.0])
    records = [record(1, **good), record(2, **odd), record(3, **good), record(4, **good)]
    ranks = run_of(tmp_path, records).rank_times
    assert ranks == {0: StepSeconds(2.0, 2.0, 0.0), 1: StepSeconds(4.0, 0.0, 0.0)}


def test_where_ranks_left_the_times_are_those_of_the_ranks_that_are_there(tmp_path):
    whole = times([1.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0] * 3)
    rest = times([1.0, None, 2.0], [1.0, None, 0.0], [0.0] * 3)
    records = [record(step, **(rest if step > 5 else whole)) for step in range(1, 8)]
    assert run_of(tmp_path, records).rank_times == {0: StepSeconds(2.0, 2.0, 0.0), 2: StepSeconds(4.0, 0.0, 0.0)}


SMALL = {"kind": "train", "step": 1, "epoch": 0.1}
HOSTILE = {
    "short records": lambda number: json.dumps({**SMALL, "step": number, "epoch": number / 10, "loss": 1.5}),
    "many lists": lambda number: json.dumps({**SMALL, "epoch": number, "x": [[]] * 3000}),
    "many ranks": lambda number: json.dumps({**SMALL, "epoch": number, **times([1] * 900, None, [1] * 900)}),
    "many kinds": lambda number: json.dumps({**SMALL, "kind": f"kind {number}"}),
    "many names": lambda number: json.dumps({**SMALL, "epoch": number, **{f"{number} {at}": 1 for at in range(500)}}),
    "changes": lambda number: json.dumps({**SMALL, "kind": "members", "ranks": [number, *range(9)], "number": number}),
    "hashes": lambda number: json.dumps({**SMALL, "kind": "checkpoint", "step": number, "parameters": "0" * 16}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_memory_of_a_reader_is_that_of_the_file_and_a_little_for_each_record(tmp_path, monkeypatch, kind):
    """Objects of the records took up to 27 times as much as the file."""
    monkeypatch.setattr(metrics, "CHUNK_BYTES", 1 << 16)
    path, size, number = tmp_path / "metrics.jsonl", 0, 0
    with open(path, "w") as file:
        while size < 1 << 20:
            number += 1
            size += file.write(HOSTILE[kind](number) + "\n")
    tracemalloc.start()
    try:
        reader = HistoryReader(path).read()
        shown = reader.curves(), reader.rank_times(), reader.hashes(), Changes.of(reader)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert any(shown)
    assert peak < 2 * size + 400 * number, f"{peak / size:.1f} times the file"


def ranks(*compute, data=(), known=True):
    """The times of ranks that compute for these seconds; they wait for the slowest one."""
    slowest = max(compute)
    return [
        StepSeconds(seconds, slowest - seconds if known else None, rows)
        for seconds, rows in zip(compute, data or [0.0] * len(compute), strict=True)
    ]


WAS_SLOW = {"was_slow": frozenset({(1, "compute")})}
SLOW = {
    "1.6 times the median": ([ranks(1.0, 1.1, 1.8, 0.9)], {}, [(2, "compute")]),
    "less": ([ranks(1.0, 1.1, 1.5, 0.9)], {}, []),
    "of two ranks, the other one counts": ([ranks(5.0, 8.1)], {}, [(1, "compute")]),
    "the slowest is the last": ([ranks(1.0, 3.0, 1.0, 2.0, 1.0)], {}, [(3, "compute"), (1, "compute")]),
    "the disk is slow for all": ([ranks(1.0, 1.0, data=[9.0, 9.0])], {}, []),
    "a short difference": ([ranks(0.01, 0.01, 0.05)], {}, []),
    "in one part of the window only": ([ranks(1.0, 9.0), ranks(1.0, 1.1)], {}, []),
    "in each part": ([ranks(1.0, 2.0), ranks(1.0, 1.4)], {}, [(1, "compute")]),
    "not slow yet": ([ranks(1.0, 1.4)], {}, []),
    "slow until it has recovered": ([ranks(1.0, 1.4)], WAS_SLOW, [(1, "compute")]),
    "recovered": ([ranks(1.0, 1.2)], WAS_SLOW, []),
    "computing contains the wait for others": ([ranks(1.0, 9.0, known=False)], {}, []),
    "one rank": ([ranks(1.0)], {}, []),
    "no rank": ([[]], {}, []),
    "no window": ([], {}, []),
    "as many shards": ([ranks(1.0, 1.0, 2.0)] * 3, {"work": [1, 1, 1]}, [(2, "compute")]),
    "more shards": ([ranks(2.0, 1.0, 1.0)] * 3, {"work": [2, 1, 1]}, []),
    # Rank 0 takes twice as long for a shard, and has half as many: all take the same time, and nobody waits for it.
    "fewer shards": ([ranks(1.0, 1.0, 1.05, 0.95)] * 3, {"work": [2, 4, 4, 4]}, []),
    "fewer shards, and the last": ([ranks(1.0, 0.5, 0.5, 0.5)] * 3, {"work": [3, 4, 4, 4]}, [(0, "compute")]),
}  # fmt: skip


@pytest.mark.parametrize(("window", "options", "expected"), SLOW.values(), ids=SLOW)
def test_which_ranks_are_slow(window, options, expected):
    assert [(slow.rank, slow.part) for slow in slow_ranks(window, **options)] == expected


def test_parts_are_sums_differences_and_shares():
    time, more = StepSeconds(1.0, 2.0, 1.0), StepSeconds(0.5, 3.0, 0.0)
    assert time.plus(more) == (1.5, 5.0, 1.0) and time.minus(more) == (0.5, 0.0, 1.0)
    assert time.plus(StepSeconds(1.0, None, 0.0)).communicate is None
    assert time.shares == (0.25, 0.5, 0.25) and StepSeconds(0.0, 0.0, 0.0).shares is None
    assert (time.total, time.local) == (4.0, 2.0)


def test_ranks_that_are_not_there_have_no_times():
    times = [StepSeconds(1.0, 2.0, 0.5), None, StepSeconds(2.0, 1.0, 0.5)]
    assert msgspec.convert(to_record(times), RankTimes).by_rank == {0: times[0], 2: times[2]}
    assert msgspec.convert(to_record([NO_TIME] * 2), RankTimes).by_rank == {0: NO_TIME, 1: NO_TIME}
    assert to_record([StepSeconds(1.0, None, 0.0), None])["communicate_s"] is None


def test_a_reader_has_at_most_so_many_records(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [line("train", number, loss=1.0) for number in range(9)]
    path.write_text("".join(lines[:3]) + lines[1] + "".join(lines[2:]))
    reader = MetricsReader(path, most=5).read()
    assert [record["step"] for record in reader.of_kind("train")] == [0, 1, 2, 3, 4]
    path.write_text(path.read_text() + lines[8])
    assert len(reader.read().all()) == 5
    assert len(metrics.read(path)) == 9
