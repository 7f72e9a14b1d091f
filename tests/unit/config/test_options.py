"""Options, recipes, and their JSON form."""

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
from hvdtrain.errors import UserError


def test_options_override_the_recipe():
    config, runtime = parse(["--recipe", "book", "--lr", "0.3", "--offline"], "p", "mxnet")
    assert (config.data, config.batch_size, config.lr, config.framework) == (
        "fashion-mnist",
        256,
        0.3,
        "mxnet",
    )
    assert runtime.offline


@pytest.mark.parametrize("name", RECIPES)
def test_options_survive_their_json_form(name):
    config = from_recipe(name)
    for options in (config, RuntimeOptions()):
        record = to_record(options)
        assert json.loads(json.dumps(record)) == record, "a sweep compares options with those in files"
    assert from_record(to_record(config)) == config


def test_synchronized_batch_normalization_takes_a_batch_in_one_pass():
    with pytest.raises(UserError, match=r"--batch-norm sync: the parts of --accumulate are normalized one by one"):
        Config(batch_norm="sync", accumulate=2)


@pytest.mark.parametrize("groups", ["auto", 1, 3])
def test_groups_are_a_number_or_auto_in_a_record(groups):
    record = json.loads(json.dumps(to_record(Config(groups=groups))))
    assert record["groups"] == groups
    assert from_record(record).groups == groups


@pytest.mark.parametrize("groups", ["x", "3", 1.5, True, None, [1]])
def test_other_groups_in_a_record_are_unknown(groups):
    with pytest.raises(TypeError, match="groups is"):
        from_record({**to_record(Config()), "groups": groups})


@pytest.mark.parametrize(
    ("options", "reason", "remedy"),
    [
        ({"lr": -1.0}, "--lr -1.0: must be above 0", ""),
        ({"lr": float("nan")}, "--lr nan: must be above 0", ""),
        ({"warmup_epochs": float("inf")}, "--warmup-epochs inf: is too large", ""),
        ({"max_steps": 1 << 53}, "--max-steps 9007199254740992: is too large", ""),
        (
            {"schedule": "step", "lr_gamma": 1e9, "lr_step_epochs": 1},
            "--lr-gamma 1000000000.0: the learning rate would exceed 10^30",
            "give at most 1",
        ),
        ({"momentum": 1.5}, "--momentum 1.5: must be below 1", ""),
        ({"epochs": 0}, "--epochs 0: must be above 0", ""),
        ({"seed": -1}, "--seed -1: must be 0 or more", ""),
        (
            {"strategy": "ddp", "op": "sum"},
            "--op sum: only --strategy horovod has this option",
            "leave it out, or use --strategy horovod",
        ),
    ],
)
def test_values_that_cannot_work(options, reason, remedy):
    with pytest.raises(UserError) as caught:
        Config(**options)
    assert (caught.value.reason, caught.value.remedy) == (reason, remedy)


NUMBERS = [
    (kind, name)
    for kind in (Config, RuntimeOptions)
    for name, value in dataclasses.asdict(kind()).items()
    if type(value) in (int, float)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf"), -1, 10**30])
def test_no_number_is_unlimited(kind, name, value):
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
