"""metrics.jsonl and TensorBoard events, also on a full disk."""

import json
import resource

from support.events import read_events

from hvdtrain.runs import metrics
from hvdtrain.runs.trackers import scalars
from hvdtrain.runs.trackers.tensorboard import EventsWriter


def test_incomplete_line_of_a_killed_job_is_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": 2}\n{"kind": "train", "step": 1, "loss": 3}\n{"kind": "tr')
    assert metrics.read(path) == [{"kind": "train", "step": 1, "loss": 3}]


def test_records_lost_on_a_full_disk_are_logged_once(tmp_path, caplog):
    """A limit on the size of files takes the place of a full disk, which only root can mount."""
    before, events = resource.getrlimit(resource.RLIMIT_FSIZE), EventsWriter(tmp_path / "tensorboard")
    writer = metrics.MetricsWriter(tmp_path, lambda record: events.write(record["step"], scalars(record)))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
        for step in range(1000):
            writer.write("train", step, loss=float(step))
        writer.close()
        events.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    messages = [record.getMessage() for record in caplog.records]
    warnings = [line.partition(": training continues")[0].rpartition("/")[2].split(" ", 1)[1] for line in messages[:2]]
    assert warnings == ["cannot be written (File too large)"] * 2
    assert "record(s) that the disk did not accept" in messages[2] and len(messages) == 3
    losses = read_events(tmp_path)["train/loss"]
    assert 100 < len(losses) < 1000 and losses == list(range(len(losses)))


def test_repeated_steps_are_recognized_by_their_epoch(tmp_path):
    """A resume with another batch size renumbers steps, so that a number may come again, or a lower one follow."""
    path = tmp_path / "metrics.jsonl"
    written = [(5, 1.0), (10, 2.0), (15, 3.0), (4, 2.0), (5, 2.5), (40, 3.0)]
    path.write_text("".join(json.dumps({"kind": "test", "step": step, "epoch": at}) + "\n" for step, at in written))
    assert [(one["step"], one["epoch"]) for one in metrics.read(path)] == [(5, 1.0), (4, 2.0), (5, 2.5), (40, 3.0)]
