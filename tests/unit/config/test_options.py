"""Options, ranges of steps, recipes, their JSON form, and the figure that is the score of a run."""

import contextlib
import dataclasses
import functools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from hvdtrain.config.option import convert, types
from hvdtrain.config.options import Config, RuntimeOptions, from_recipe
from hvdtrain.config.recipes import RECIPES
from hvdtrain.config.score import figure_of
from hvdtrain.config.sources import KINDS, CommandLine, from_record, to_record
from hvdtrain.errors import UserError


@pytest.mark.parametrize("name", RECIPES)
def test_options_survive_their_json_form(name):
    config = from_recipe(name)
    for options in (config, RuntimeOptions()):
        record = to_record(options)
        assert json.loads(json.dumps(record)) == record, "a sweep compares options with those in files"
    assert from_record(to_record(config)) == config
    with pytest.raises(ValueError, match="unknown: later"):
        from_record({**to_record(config), "later": 3})


NUMBERS = [
    (kind, name)
    for kind in (Config, RuntimeOptions)
    for name, value in dataclasses.asdict(kind()).items()
    if type(value) in (int, float)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_no_number_is_unlimited(kind, name):
    for value in (float("inf"), float("nan"), float("-inf"), -1, 10**30):
        refused(functools.partial(kind, **{name: value}), name.replace("_", "-"), option=name)


OTHER_TYPES = ["one two", 1.5, True, None, [1], {"a": 1}, b"x", object(), np.zeros(2), np.float64]


@pytest.mark.parametrize("kind", [Config, RuntimeOptions])
def test_a_program_gives_values_of_the_types_of_a_command_line(kind):
    """Or of NumPy. Others are refused, and not by what first computes with them."""
    for name, of_type in types(kind).items():
        for value in OTHER_TYPES:
            with contextlib.suppress(UserError):
                made = getattr(kind(**{name: value}), name)
                assert convert(made, of_type) == made, (name, value)
    with pytest.raises(UserError, match=r"optimizer = 'adm' is not valid \(did you mean adam\?\); give one of"):
        Config(optimizer="adm")
    config = Config(lr=np.float64(0.5), batch_size=np.int64(8), data=Path("photos"))
    assert to_record(config) == to_record(Config(lr=0.5, batch_size=8, data="photos"))


def test_help_says_what_it_trains_and_names_the_task_first():
    text = CommandLine.read(["--help", "all"], "hvdtrain train", None).help()
    assert text.startswith("usage: hvdtrain train [FILE.py:CLASS] [OPTIONS]\n")
    assert "LeNet" not in text.partition("options:")[0]
    for word in re.findall(r"\b[A-Z]{3,}_[A-Z_]{3,}\b", text):
        assert word.startswith(("HVDTRAIN_", "OMP_")), f"{word} is a name of the code"


def shown_options(words, program):
    """The options that --help shows, each by its first long name."""
    text = CommandLine.read(words, program, None).help()
    return {re.search(r"--[a-z-]+", names)[0] for names in re.findall(r"^  (-.*)$", text, re.M)} - {"--help"}


@pytest.mark.parametrize("program", ["hvdtrain train", "python -m hvdtrain.torch_lenet"])
def test_help_shows_twenty_options_and_asked_for_all_of_them(program):
    common, every = shown_options(["--help"], program), shown_options(["-h", "all"], program)
    assert len(common) <= 20 and {"--ranks", "--data", "--lr", "--resume"} <= common < every
    assert common == shown_options(["--epochz", "-h"], program), "of a command line that is not valid"
    options = {f"--{name.replace('_', '-')}" for name in KINDS}
    assert options | {"--config", "--restarts", "--hosts"} <= every
    line = CommandLine.read(["--recipe", "book", "--help"], program, None)
    assert "Peak learning rate (default: 0.2)" in line.help() and f"{program} --help all lists all" in line.help()


@pytest.mark.parametrize(
    ("loss", "metrics", "choice", "expected"),
    [
        (0.5, {"accuracy": 0.75, "f1": 0.6}, "auto", ("accuracy", 0.75, False)),
        (0.5, {"f1": 0.6}, "auto", ("loss", 0.5, True)),
        (0.5, {"f1": 0.6, "accuracy": 0.75}, "max:f1", ("f1", 0.6, False)),
        (0.5, {"perplexity": 12.0}, "min:perplexity", ("perplexity", 12.0, True)),
        (0.5, {"accuracy": 0.75}, "min:loss", ("loss", 0.5, True)),
        (0.5, {"accuracy": 0.75}, "min:missing", None),
        (0.5, {"a:b c": 0.75}, "max:a:b c", ("a:b c", 0.75, False)),
        (None, {}, "auto", None),
        (math.nan, {}, "auto", None),
        (0.5, {"accuracy": math.nan}, "auto", None),
    ],
)
def test_which_figure_is_the_score(loss, metrics, choice, expected):
    score = figure_of(loss, metrics, choice).finite
    assert (score and score[:3]) == expected
    assert not score or score.choice == (choice if choice != "auto" else "")


def test_a_better_value_is_before_a_worse_one():
    values = [-1e30, -5.0, -1e-3, -2e-17, 0.0, 4.35e-17, 4.36e-17, 1e-6, 0.1, 3.0, 1e9, 4.35e19, 4.36e19]
    for choice in ("", "min:x", "max:x", "min:loss"):
        orders = [figure_of(value, {"x": value}, choice).finite.order for value in values]
        assert orders == sorted(orders, reverse=choice != "max:x")
        assert min(orders) > () and len(set(orders)) == len(orders)
        rough = [order[:1] for order in orders]  # all that a checkpoint of an earlier version has
        assert rough == sorted(rough, reverse=choice != "max:x") and len(set(rough)) > 8
