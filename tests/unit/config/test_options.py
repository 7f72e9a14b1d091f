"""Options, ranges of steps, recipes, and their JSON form."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from support.options import parse

from hvdtrain.config import validity
from hvdtrain.config.option import choices, types
from hvdtrain.config.options import RECIPES, Config, RuntimeOptions, from_recipe
from hvdtrain.config.sources import CommandLine, from_record, to_record
from hvdtrain.config.step_range import StepRange
from hvdtrain.errors import UserError


def test_options_override_the_recipe():
    config, runtime = parse(["--recipe", "book", "--lr", "0.3", "--offline"], "p", "mxnet")
    found = (config.data, config.batch_size, config.lr, config.framework)
    assert found == ("fashion-mnist", 256, 0.3, "mxnet")
    assert runtime.offline


@pytest.mark.parametrize("name", RECIPES)
def test_options_survive_their_json_form(name):
    config = from_recipe(name)
    for options in (config, RuntimeOptions()):
        record = to_record(options)
        assert json.loads(json.dumps(record)) == record, "a sweep compares options with those in files"
    assert from_record(to_record(config)) == config


def test_groups_are_a_number_or_auto_in_a_record():
    for groups in ("auto", 1, 3):
        record = json.loads(json.dumps(to_record(Config(groups=groups))))
        assert record["groups"] == groups == from_record(record).groups
    for groups in ("x", "3", 1.5, True, None, [1]):
        with pytest.raises(TypeError, match="groups is"):
            from_record({**to_record(Config()), "groups": groups})


STEPS = "--lr-gamma 1000000000.0: the learning rate would exceed 10^30; give at most 1"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lr": -1.0}, "--lr -1.0: must be above 0"),
        ({"lr": float("nan")}, "--lr nan: must be above 0"),
        ({"warmup_epochs": float("inf")}, "--warmup-epochs inf: is too large"),
        ({"max_steps": 1 << 53}, "--max-steps 9007199254740992: is too large"),
        ({"schedule": "step", "lr_gamma": 1e9, "lr_step_epochs": 1}, STEPS),
        ({"momentum": 1.5}, "--momentum 1.5: must be below 1"),
        ({"epochs": 0}, "--epochs 0: must be above 0"),
        ({"seed": -1}, "--seed -1: must be 0 or more"),
        ({"strategy": "ddp", "op": "sum"}, "--op sum: only --strategy horovod has this option; leave it out, or use"),
        ({"batch_norm": "sync", "accumulate": 2}, "--batch-norm sync: the parts of --accumulate are normalized one"),
        *(({"score": choice}, f"--score {choice}") for choice in ("accuracy", "max", "min:", "best:f1", "")),
        *(
            ({"timeline": text}, f"--timeline {text}: is not FIRST:LAST")
            for text in ("5", "a:b", "-1:5", ":5", "١:٥", "1:2\n", "1:" + "9" * 5000)
        ),
        ({"timeline": "7:7"}, "--timeline 7:7: has no step"),
        ({"timeline": "9:7"}, "--timeline 9:7: has no step"),
        ({"timeline": "0:1001"}, "--timeline 0:1001: has 1001 steps"),
        ({"framework_profiler": True}, "--framework-profiler: it needs to know for which steps"),
    ],
)
def test_values_that_cannot_work(options, error):
    kind = RuntimeOptions if options.keys() & types(RuntimeOptions).keys() else Config
    with pytest.raises(UserError) as caught:
        kind(**options)
    assert str(caught.value).startswith(error)


def test_a_range_of_steps_ends_before_its_last_number():
    found = StepRange.parse("100:110")
    assert (found.first, found.last, len(found), str(found)) == (100, 110, 10, "100:110")
    assert RuntimeOptions(timeline="1:2", framework_profiler=True).timeline == "1:2"


NUMBERS = [
    (kind, name)
    for kind in (Config, RuntimeOptions)
    for name, value in dataclasses.asdict(kind()).items()
    if type(value) in (int, float)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_no_number_is_unlimited(kind, name):
    for value in (float("inf"), float("nan"), float("-inf"), -1, 10**30):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} "):
            kind(**{name: value})


def test_bf16_of_mxnet_needs_avx512():
    validity.check_framework(Config(framework="mxnet", precision="bf16", isa="avx512"))
    validity.check_framework(Config(framework="torch", precision="bf16", isa="avx2"))
    with pytest.raises(UserError) as raised:
        validity.check_framework(Config(framework="mxnet", precision="bf16", isa="avx2"))
    assert raised.value.option == "isa"


def help_of(program):
    return CommandLine.read([], program, None).help()


def test_help_says_what_it_trains_and_names_the_task_first():
    text = help_of("hvdtrain train")
    assert text.startswith("usage: hvdtrain train [FILE.py:CLASS] [OPTIONS]\n")
    assert "LeNet" not in text.partition("options:")[0]
    for word in re.findall(r"\b[A-Z]{3,}_[A-Z_]{3,}\b", text):
        assert word.startswith(("HVDTRAIN_", "OMP_")), f"{word} is a name of the code"


def test_help_of_a_script_has_the_options_that_it_accepts():
    """Each option of it is accepted by the rules of scripts, and no other one is."""
    listed = {name.replace("-", "_") for name in re.findall(r"^  --([a-z-]+)", help_of("script.py"), re.M)}
    others = {"lr": 0.5, "op": "sum"}
    for kind in (Config, RuntimeOptions):
        for field in dataclasses.fields(kind):
            config, runtime = Config(strategy="horovod"), RuntimeOptions()
            value = others.get(field.name) or other_value(field.default, types(kind)[field.name])
            changed = {Config: config, RuntimeOptions: runtime}[kind]
            object.__setattr__(changed, field.name, value)
            try:
                validity.check_script("script.py", False, config, runtime)
                assert field.name in listed, field.name
            except UserError as error:
                assert error.option == field.name and field.name not in listed


def other_value(default, kind):
    """A value that is not the default, which the rules of scripts may reject, whatever else it means."""
    if isinstance(default, bool):
        return not default
    if texts := [text for text in choices(kind) if text != default]:
        return texts[0]
    return ("x=1",) if isinstance(default, tuple) else (default or 0) + 1 if isinstance(default, int | float) else "x"


def test_paths_may_be_texts():
    options = RuntimeOptions(runs="some/runs", resume="some/runs/first")  # type: ignore[arg-type]
    assert (options.runs, options.resume) == (Path("some/runs"), Path("some/runs/first"))
