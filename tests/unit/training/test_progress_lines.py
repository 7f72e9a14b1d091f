"""The lines of progress where standard error is not a terminal."""

import re

from support.fake_learner import numbered, use_fakes

from hvdtrain.config.options import Config, RuntimeOptions
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


def test_spike_is_far_above_the_recent_median():
    detector = SpikeDetector()
    assert [detector.exceeded_median(loss) for loss in (1.0, 9.0, 1.0, 1.0, 1.0)] == [None] * 5, "too few to compare"
    assert detector.exceeded_median(2.9) is None
    assert detector.exceeded_median(3.1) == 1.0
