"""The lines of progress where standard error is not a terminal."""

import re

import pytest
from support.fake_learner import numbered, use_fakes

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks import arithmetic
from hvdtrain.runs.console import Display
from hvdtrain.training.reporting import SpikeDetector
from hvdtrain.training.train import train


def test_accuracy_is_shown_when_there_is_one(tmp_path, monkeypatch, capfd):
    use_fakes(monkeypatch, numbered(64))
    monkeypatch.setattr(Display, "PLAIN_EVERY_S", 0.0)
    options = {"schedule": "constant", "warmup_epochs": 0, "lr": 0.125}
    config = Config(framework="torch", strategy="single", epochs=2, batch_size=16, **options)
    train(config, RuntimeOptions(runs=tmp_path, log_every=2), list)
    lines = [line for line in capfd.readouterr().err.splitlines() if " s left" in line]
    assert [re.sub(r"[\d,]+ (images/s|s left)", r"N \1", line) for line in lines] == [
        f"epoch {epoch}/2  step {step}/8  N images/s  loss 1.0000{accuracy}  lr 0.125  N s left"
        for epoch, step, accuracy in [(1, 2, ""), (1, 4, ""), (2, 6, "  accuracy 1.0000"), (2, 8, "  accuracy 1.0000")]
    ]


@pytest.mark.parametrize(("bf16_s", "warnings"), [(2e-3, 1), (0.5e-3, 0)])
def test_a_precision_that_is_slower_here_is_said_once(bf16_s, warnings, tmp_path, monkeypatch):
    use_fakes(monkeypatch, numbered(64))
    monkeypatch.setattr(arithmetic, "product_s", lambda _, precision: bf16_s if precision == "bf16" else 1e-3)
    config = Config(framework="torch", strategy="single", precision="bf16", epochs=2, batch_size=16)
    folder = train(config, RuntimeOptions(runs=tmp_path, log_every=2, quiet=True), list)
    lines = (folder / "logs" / "rank-0.log").read_text().splitlines()
    assert sum("WARNING --precision bf16" in line for line in lines) == warnings


def test_spike_is_far_above_the_recent_median():
    detector = SpikeDetector()
    assert [detector.exceeded_median(loss) for loss in (1.0, 9.0, 1.0, 1.0, 1.0)] == [None] * 5, "too few to compare"
    assert detector.exceeded_median(2.9) is None
    assert detector.exceeded_median(3.1) == 1.0
