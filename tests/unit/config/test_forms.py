"""Options whose text has a form of its own, and options that went."""

import pytest
from support.errors import refused
from support.options import parse

from hvdtrain.config.forms import Betas, Intervals, Schedule, Split
from hvdtrain.config.option import types
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Schedule, "cosine", Schedule("cosine")),
        (Schedule, "step", Schedule("step", factor=0.1, epochs=5)),
        (Schedule, "step:0.5", Schedule("step", factor=0.5, epochs=5)),
        (Schedule, "step::2", Schedule("step", factor=0.1, epochs=2)),
        (Schedule, "polynomial:2", Schedule("polynomial", power=2.0)),
        (Schedule, "onecycle:0", Schedule("onecycle", share=0.0)),
        (Betas, "0.8:0.99", Betas(0.8, 0.99)),
        (Betas, "0.8", Betas(0.8, 0.999)),
        (Betas, ":0.99", Betas(0.9, 0.99)),
        (Intervals, (), Intervals(0, 60)),
        (Intervals, ("100",), Intervals(100, 60)),
        (Intervals, ("0s",), Intervals(0, 0)),
        (Intervals, ("100", "1.5s"), Intervals(100, 1.5)),
        (Intervals, ("5", "7s", "6", "8s"), Intervals(6, 8)),
        # A share in a part is the number that its digits mean, so that the rows do not depend on how it is written.
        (Split, "", (0, 0)),
        (Split, "0.8", (0.8, 0)),
        (Split, "0.8/0/0.2", (0.8, 0)),
        (Split, "0.9/0.1", (0, 0.1)),
        (Split, "0.7/0.3", (0, 0.3)),
        (Split, "0.8/0.1/0.1", (0.9, 1 / 9)),
        (Split, "0.72/0.08/0.2", (0.8, 0.1)),
        (Split, "0.56/0.24/0.2", (0.8, 0.3)),
    ],
)
def test_what_a_text_means(kind, text, expected):
    assert kind.parse(text) == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"schedule": "cosin"}, "no such schedule (did you mean cosine?); give constant, step:FACTOR:EPOCHS, cosine"),
        ({"lr": -1.0}, "must be above 0"),
        ({"max_steps": 1 << 53}, "is too large"),
        ({"momentum": 1.5}, "must be below 1"),
        ({"schedule": "cosine:1"}, "has too many values; give constant"),
        ({"schedule": "step:0"}, "FACTOR must be above 0; give"),
        ({"schedule": "step:2"}, "FACTOR must be 1 or less; give"),
        ({"schedule": "step:1:0.5"}, "'0.5' is not a value of EPOCHS"),
        ({"schedule": "polynomial:inf"}, "'inf' is not a value of POWER"),
        ({"schedule": "onecycle:1"}, "SHARE must be below 1"),
        ({"schedule": " step"}, "is empty, or has spaces around it"),
        ({"betas": "1:0.9"}, "BETA1 must be below 1; give BETA1:BETA2"),
        ({"betas": "0.9:0.9:0.9"}, "has too many values"),
        ({"checkpoint_every": ("10m",)}, "'10m' is not a value of STEPS; give steps, such as 100, or seconds"),
        ({"checkpoint_every": ("1", "-1s")}, "SECONDS must be 0 or more"),
        ({"checkpoint_every": ("s",)}, "has no number"),
        *(({"split": text}, "is not a list of one to three shares") for text in ("80 %", "0.5/0.5/0/0", "1e9999999")),
        ({"split": "0.8/0.1"}, "the sum of its shares is 0.9, and not 1, or a part has no rows; give TRAIN/"),
        *(({"split": text}, "the sum of its shares is 1, and not 1, or a part has no rows") for text in ("1", "1/0")),
        ({"image_size": "8"}, "is not an image size; give HEIGHTxWIDTH"),
        *(({"score": text}, "does not say whether") for text in ("accuracy", "max", "min:", "best:f1")),
        *(({"timeline": text}, "is not FIRST:LAST") for text in ("5", "a:b", ":5", "١:٥", "1:" + "9" * 5000)),
        *(({"name": text}, "contains /, but lists of runs show only") for text in ("a/b", "/a", "a/", "../a", "..//")),
        *(({"name": text}, "begins with a dot, and lists of runs") for text in (".", "..", ".first")),
        ({"timeline": "7:7"}, "has 0 steps; give two numbers"),
        ({"timeline": "0:1001"}, "has 1001 steps"),
        ({"compression": "zip"}, "not a method of compression; give none, fp16"),
        ({"compression": "powersgd:257"}, "R is above 256"),
    ],
)
def test_texts_of_another_form(options, error):
    name = next(iter(options))
    kind = Config if name in types(Config) else RuntimeOptions
    text = str(refused(lambda: kind(**options), f": {error}", option=name))
    assert text.startswith(f"--{name.replace('_', '-')} ")


def test_pairs_of_numbers_are_no_texts():
    for name in ("split", "betas"):
        with pytest.raises(UserError, match=rf"{name} = \(0.9, 0.1\) is not valid"):
            Config(**{name: (0.9, 0.1)})


def test_programs_and_files_may_give_numbers_and_single_values(tmp_path):
    assert Config(split=0.8) == Config(split="0.8")
    assert RuntimeOptions(checkpoint_every=100) == RuntimeOptions(checkpoint_every=["100"])
    (tmp_path / "run.toml").write_text('split = 0.8\ncheckpoint-every = 100\ntracker = "tensorboard"\n')
    config, runtime = parse(["--config", str(tmp_path / "run.toml"), "--checkpoint-every", "5s"], framework="torch")
    assert (config.split, runtime.checkpoint_every) == ("0.8", ("100", "5s"))
    assert runtime.tracker == ("tensorboard",)
