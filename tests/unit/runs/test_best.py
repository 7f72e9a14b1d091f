"""The best checkpoint of a run, by its score or by any other figure of its evaluations."""

import json

import pytest

from hvdtrain.errors import UserError
from hvdtrain.runs import best
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry

VALUES = {3: (3.0, 0.2), 6: (1.5, 0.9), 9: (2.0, 0.9)}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with a checkpoint and an evaluation at each of three steps, and a checkpoint within an epoch."""
    (tmp_path / "checkpoints").mkdir()
    line = [Entry(tmp_path / "checkpoints" / f"step-{step}", step, step / 10, step, ((1, 9),)) for step in (3, 6, 7, 9)]
    monkeypatch.setattr(checkpoint_folder, "current_line", lambda _: line)
    writer = MetricsWriter(tmp_path)
    for step, (perplexity, hit) in VALUES.items():
        writer.write("test", step, epoch=step / 3, loss=1.0 / step, perplexity=perplexity, hit=hit)
    writer.close()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("best", 9),
        ("best:min:perplexity", 6),
        ("best:max:perplexity", 3),
        ("best:max:hit", 9),  # of equal ones the newest
        ("best:min:loss", 9),
        ("best:max:loss", 3),
    ],
)
def test_by_any_figure(run, name, step):
    assert best.step_of(run / name) == step


def test_a_checkpoint_has_its_own_step_and_a_run_has_none(run):
    (run / "checkpoints" / "step-7").mkdir()
    (run / "checkpoints" / "step-7" / "manifest.json").write_text(json.dumps({}))
    assert best.step_of(run / "checkpoints" / "step-7") == 7
    assert best.step_of(run) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("best:min:perplexit", "has measured no 'perplexit' (did you mean perplexity?)"),
        ("best:perplexity", "does not say whether the greatest or the least value is the best"),
    ],
)
def test_what_was_not_measured(run, name, reason):
    with pytest.raises(UserError) as raised:
        best.step_of(run / name)
    assert reason in raised.value.reason and raised.value.remedy
    (run / "metrics.jsonl").write_text('{"kind": "test", "step": 5, "epoch": 1, "loss": 1.0}\n')
    with pytest.raises(UserError, match="no evaluation has given a checkpoint"):
        best.step_of(run / "best:min:loss")
