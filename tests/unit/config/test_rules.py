"""What does not go together: a case for each rule."""

import functools

import pytest
from support.errors import refused

from hvdtrain.config import rules
from hvdtrain.config.option import types
from hvdtrain.config.options import Config, RuntimeOptions, from_recipe

NO_LOOP, NO_SCALE = {"batch_norm": "sync", "groups": 2}, {"precision": "fp16"}
BY_HAND = {"freeze": "a", "ema": 0.9, "clip_norm": 1.0, "on_nan": "skip", "precision": "bf16"}
SURVIVING = {"survives": True, "can_survive": True, "strategy": "ring"}
ROWS = {"samples": 100, "full_batches": 1, "step_rows": 64, "device_rows": 32, "unit": "rows", "evaluated": 10}
SCRIPT = {"script": "loop.py", "untested": 0.0, "is_other": False}
CASES = [
    ({}, {"schedule": "step:1e9:1"}),
    ({"momentum": 0}, {"nesterov": True}),
    ({"optimizer": "adam"}, {"nesterov": True}),
    ({"accumulate": 2}, {"batch_norm": "sync"}),
    ({"groups": 2}, {"freeze": "a*"}),
    ({"sample": "balanced"}, {"class_weights": "balanced"}),
    ({"shards": 4}, {**NO_LOOP, **NO_SCALE, "batch_scope": "per-rank", "compile": True}),
    ({"shards": 4}, {"compression": "int8"}),
    ({"sync_every": 4}, {**NO_LOOP, **NO_SCALE, "shards": 4, "on_nan": "skip", "ema": 0.9, "compression": "fp16"}),
    ({"strategy": "ddp"}, {"groups": 2, "compression": "fp16", "accumulate": 2}),
    ({"compression": "powersgd:2"}, {"groups": 2}),
    ({"precision": "fp16"}, {"compression": "powersgd:2"}),
    ({"framework": "mxnet"}, {"compile": True}),
    ({"strategy": "ndarray"}, {**BY_HAND, "optimizer": "adam", "accumulate": 2, "compression": "fp16"}),
    ({"strategy": "manual"}, {"compression": "fp16", "compile": True, "accumulate": 2}),
    ({"strategy": "module"}, {**BY_HAND, "accumulate": 2, "batch_norm": "sync", "compression": "fp16"}),
    ({"strategy": "keras-fit"}, {**BY_HAND, "optimizer": "adam", "accumulate": 2, "compression": "int8"}),
    ({"strategy": "keras-fit-mirrored"}, {"batch_norm": "sync"}),
    ({"strategy": "mirrored"}, {"ema": 0.9}),
    ({"strategy": "dataparallel"}, {"compile": True, "batch_norm": "sync"}),
    ({"sums_shards": False}, {"shards": 4, "sync_every": 4}),
    ({"many_devices": False}, {"devices": 2}),
    ({"many_devices": True}, {"devices": 65}),
    ({}, {"audit": 10}),
    ({"strategy": "single", "shards": 4}, {"audit": 10}),
    ({}, {"on_wrong_bits": "exclude"}),
    ({"audit": 2, "shards": 4, "survives": False}, {"on_wrong_bits": "exclude"}),
    (SURVIVING, {"sync_every": 4, "shards": 0}),
    ({**SURVIVING, "can_survive": False, "shards": 4}, {"strategy": "ddp"}),
    ({"ranks": 3}, {"shards": 2}),
    ({}, {"resume": "auto"}),
    ({"restarts": True}, {"resume": "runs/a"}),
    ({"resume": "auto", "is_in_array": True}, {"name": "a"}),
    ({"gradients": 8}, {"groups": 9}),
    ({"is_code": True, "has_tasks": False}, {"strategy": "module"}),
    ({"schedule_method": "schedule", "takes_optimizer": False}, {"strategy": "ring"}),
    ({"schedule_method": "schedule"}, {"framework": "mxnet"}),
    (SCRIPT, {"framework": "tensorflow", "lr": 0.1, "precision": "bf16"}),
    ({**SCRIPT, "untested": 0.8}, {"split": "0.8"}),
    (SCRIPT, {"strategy": "manual"}),
    ({**SCRIPT, "is_other": True}, {"model": "mlp"}),
    ({**ROWS, "full_batches": 0}, {"batch_size": 128}),
    (ROWS, {"shards": 65, "accumulate": 33}),
    ({**ROWS, "evaluated": 0}, {"patience": 2, "score": "min:loss"}),
    ({"task": "a.py:Task"}, {"data": "mnist", "batch_norm": "sync", "init": "he"}),
    ({"optimizer_method": "optimizer"}, {"lr": 0.1}),
    ({"schedule_method": "optimizer"}, {"schedule": "step"}),
]
"""Options and facts, and values of other options that do not go with them, each by itself."""


def of(given):
    """Options, and facts."""
    kinds = {kind: {name: given[name] for name in given.keys() & types(kind)} for kind in (Config, RuntimeOptions)}
    options = [kind(**values) for kind, values in kinds.items()]
    return options, {name: given[name] for name in given.keys() - set().union(*kinds.values())}


def check(given):
    """Check options when they are made, and then with facts, as a job does."""
    options, known = of(given)
    rules.check(*options, **known)


def test_each_rule_is_broken_by_its_case():
    broken = []
    for given, others in CASES:
        for name, value in others.items():
            error = refused(functools.partial(check, {**given, name: value}), option=name)
            assert not error.remedy.startswith(f"use {value}"), "a value that is refused is no remedy"
            broken += [rule for rule in rules.RULES if rule.option == name and _says(error, rule)]
    assert [rule for rule in rules.RULES if rule not in broken] == []


IDLE = [
    ({"optimizer": "sgd"}, {"betas": "0.5:0.9", "epsilon": 1e-3, "no_decay": "*.bias", "balance": "off"}),
    ({"optimizer": "adamw"}, {"momentum": 0.5}),
    ({"schedule": "onecycle:0.2"}, {"warmup_epochs": 2.0}),
    ({"strategy": "single"}, {"sync_every": 4, "batch_scope": "per-rank", "check_sync": 2}),
    ({"normalizes": False}, {"batch_norm": "sync"}),
    ({"samples": 100, "asked_rows": 500, "unit": "rows"}, {"batch_size": 500}),
    ({"epochs": 5}, {"patience": 5}),
    ({"all_steps": 60}, {"max_steps": 61}),
]
"""As CASES, of options that have no effect."""


def test_options_without_effect_are_told():
    told = []
    for given, others in IDLE:
        for name, value in others.items():
            options, known = of({**given, name: value})
            rules.check(*options, **known)
            (text,) = rules.without_effect(*options, **known)
            assert text.startswith(f"--{name.replace('_', '-')} {value}") and "; " in text
            told += [rule for rule in rules.NO_EFFECT if rule.option == name]
    assert [rule for rule in rules.NO_EFFECT if rule not in told] == []


def test_what_a_recipe_gives_is_not_what_a_user_gave():
    """Also where the record of a run has left it out, so that it is the default."""
    for options in (from_recipe("book", optimizer="adam"), Config("book", optimizer="adam", data="digits")):
        assert not list(rules.without_effect(options, RuntimeOptions(), samples=9, asked_rows=256, unit="rows"))
        rules.check(options, task="a.py:Task")


def _says(error, rule):
    return f": {rule.why.partition('{')[0]}" in error.reason and all(
        f"--{name.replace('_', '-')}" in error.reason for name in rule.when if name in types(Config)
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nesterov": True, "momentum": 0}, "--nesterov with --momentum 0.0: it requires momentum; use --optimizer"),
        ({"freeze": ("a", "b"), "groups": 2}, "--freeze a b with --groups 2: the number of gradients is not fixed"),
        (
            {"shards": 4, "precision": "fp16"},
            "--precision fp16 with --shards 4: no loss scale may depend on when gradients overflow; "
            "leave it out, or leave out --shards",
        ),
        ({"shards": 2, "ranks": 3}, "--shards 2: 3 ranks were started, and each needs a shard; give more"),
        (
            {"framework": "mxnet", "schedule_method": "optimizer", "takes_optimizer": False},
            "--strategy horovod: in mxnet, it updates without the task's optimizer(); leave out that method, or use",
        ),
        ({"groups": 9, "gradients": 8}, "--groups 9: lenet has 8 gradients; give at most 8, or auto"),
        ({**ROWS, "full_batches": 0}, "--batch-size 64: larger than the 100 training rows; give a smaller one, or use"),
        ({**SCRIPT, "lr": 0.1}, "--lr 0.1: loop.py decides it by itself; leave it out, and change the script"),
    ],
)
def test_what_is_said(given, message):
    assert str(refused(lambda: check(given))).startswith(message)


@pytest.mark.parametrize(
    "given",
    [
        {**ROWS, "many_devices": False, "survives": False, "ranks": 2, "restarts": False, "is_in_array": True},
        {**SURVIVING, **ROWS, "shards": 4, "audit": 5, "on_wrong_bits": "exclude", "devices": 1, "ranks": 4},
        {**SCRIPT, "split": "0.9/0.1", "shards": 4, "framework": "mxnet"},
        {"strategy": "keras-fit", "compression": "fp16", "groups": 2, "framework": "tensorflow"},
        {"strategy": "ddp", "compression": "powersgd:2", "batch_norm": "sync", "takes_optimizer": True},
        {"framework": "mxnet", "precision": "bf16", "isa": "avx2", "batch_norm": "sync", "gradients": 8, "groups": 8},
        {"framework": "torch", "precision": "bf16", "isa": "avx2", "schedule_method": "schedule", "freeze": "a"},
        {"resume": "auto", "name": "a", "restarts": True, "is_in_array": False},
        {"sync_every": 4, "compression": "int8", "sums_shards": True},
    ],
)
def test_what_goes_together(given):
    check(given)
