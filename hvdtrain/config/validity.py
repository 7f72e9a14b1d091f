"""Whether options fit together, and fit the strategy, what is trained, the data and the job: each rule is here.

What an option decides alone (its range, the only strategy that has it, the values that a framework lacks) it says where
it is defined. Each function raises UserError with the option at fault for the first rule that is broken. `Config` and
`RuntimeOptions` call the first two when they are made; so this module cannot import them for its annotations.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from hvdtrain.config.compression import FP16, NONE, POWERSGD, parse_method
from hvdtrain.config.option import choices, facts, invalid, key, types
from hvdtrain.config.schedule import Schedule
from hvdtrain.config.split import Split
from hvdtrain.config.strategy_names import OVER_HOROVOD
from hvdtrain.errors import UserError
from hvdtrain.system.rank_info import RUN_NAME

MAX_LR_EXPONENT = 30
"""Learning rates are at most 10 to this power, so that float32 holds them."""
SCRIPT_REMEDIES = {
    "accumulate": "use --shards N, with which the loop gets each batch in N parts, or a smaller --batch-size",
    "precision": "leave it out, and compute in torch.autocast",
    "weights": "leave it out, and load them into the model before setup()",
    "freeze": "leave it out, and call requires_grad_(False) before setup()",
}
"""What to do instead of an option that a script with a loop of its own decides, where that is not plain."""
COMPRESSING = ("horovod", "ring", "mpi", "ddp")
"""Strategies with --compression; fp16 is Horovod's own."""
SHARDED = "--strategy single, horovod, ring, mpi or (PyTorch) ddp"


def check_config(config: Any) -> None:
    """Check each option of a Config, and those that go together whatever the framework and the data are."""
    check_ranges(config)
    _check_combinations(config)


def check_runtime(runtime: Any) -> None:
    """Check RuntimeOptions by themselves."""
    check_ranges(runtime)
    if runtime.on_wrong_bits != "stop" and not runtime.audit:
        raise invalid("on_wrong_bits", runtime.on_wrong_bits, "wrong bits are found by audits", "give --audit as well")
    if runtime.auto_resume and not (runtime.name or os.environ.get(RUN_NAME)):
        raise invalid("resume", runtime.resume, "it finds the run by its name", "give the run a --name")


def check_launched(runtime: Any, name: str, request: str) -> None:
    """Check RuntimeOptions with the run's name, and the request to resume, that a launcher gives by variables."""
    if runtime.resumed and request == "restarts":
        reason = "--restarts resumes from the run's own folder, which --resume contradicts"
        raise UserError(reason, "give the run's --name and --runs, and no --resume", option="resume")
    if runtime.name and name and not runtime.resumed and "SLURM_ARRAY_TASK_ID" in os.environ:
        reason = f"--array with --name {runtime.name}: all tasks would train the same run"
        raise UserError(reason, "omit --name: each task then has a run of its own", option="name")


def check_ranges(options: Any) -> None:
    """Check each value of a dataclass of options by what its option allows: ranges, local paths and forms of text."""
    for name, about in facts(type(options)).items():
        value = getattr(options, name)
        if about.parse and value != getattr(type(options), name):
            for text in value if isinstance(value, tuple) else (value,):
                if not text or text != text.strip():
                    raise invalid(name, repr(text), "is empty, or has spaces around it", "give a value without them")
            about.parse(value)
        for item in value if isinstance(value, tuple) else (value,):
            if problem := about.problem(item):
                texts = choices(types(options.__class__)[name])
                raise invalid(name, item, problem, f"give another number, or {', '.join(texts)}" if texts else "")


def check_framework(config: Any) -> None:
    """Check options that the framework does not support with any strategy."""
    by_framework = {name: about.unsupported.get(config.framework) for name, about in facts(type(config)).items()}
    check_supported(config, ((name, *values) for name, values in by_framework.items() if values))
    if config.framework == "mxnet" and (config.isa, config.precision) == ("avx2", "bf16"):
        raise invalid("isa", config.isa, "MXNet's bf16 needs AVX-512", "use --precision fp32, or --isa avx512")


def check_supported(config: Any, unsupported: Iterable[tuple[str, tuple[Any, ...], str]]) -> None:
    """Check options of which only some values are supported: each with these values, and why there are no others."""
    for name, supported, reason in unsupported:
        if (value := getattr(config, name)) not in supported:
            default = getattr(type(config), name)
            raise invalid(name, value, reason, f"leave it at {default}, or change framework or strategy")


def check_strategy(config: Any, runtime: Any, strategy: Any, gradients: int | None) -> None:
    """Check options together with the strategy's class. gradients: of a network; None for a task or a script."""
    check_supported(config, strategy.unsupported)
    if config.shards:
        lacks = "does not sum the gradients of shards exactly"
        _check_alone(config, strategy, "shards", lacks)
    if config.sync_every > 1:
        _check_alone(config, strategy, "sync_every", "has no steps that a rank makes by itself")
    _check_audit(config, runtime)
    if gradients is not None and config.groups != "auto" and config.groups > gradients:
        problem = f"{config.model} has {gradients} gradients"
        raise invalid("groups", config.groups, problem, f"give at most {gradients}, or auto")
    _check_devices(config, runtime, strategy)


def check_shards(config: Any, ranks: int) -> None:
    """Check --shards together with the number of ranks."""
    if config.shards and ranks > config.shards:
        problem = f"{ranks} ranks were started, and each needs a shard"
        raise invalid("shards", config.shards, problem, f"start at most {config.shards} ranks, or give more shards")


def check_surviving(config: Any, can_survive: bool) -> None:
    """Check options together with `hvdtrain launch --survive`. can_survive: whether the strategy can."""
    if config.sync_every > 1:
        problem = "launch --survive: the steps that a lost rank made by itself would be lost"
        raise invalid("sync_every", config.sync_every, problem, "use --restarts in place of --survive")
    if not config.shards:
        reason = "launch --survive: without --shards, what a lost rank computed cannot be computed by another one"
        raise UserError(reason, "give --shards 8, for example, or launch without --survive", option="shards")
    if not can_survive:
        problem = "launch --survive: its ranks cannot be connected again after one is lost"
        raise invalid("strategy", config.strategy, problem, "use --strategy horovod or ring")


def check_not_surviving(runtime: Any) -> None:
    """Check options in a job that is not of `hvdtrain launch --survive`."""
    if runtime.on_wrong_bits == "exclude":
        problem = "this job ends when a rank is lost"
        raise invalid("on_wrong_bits", "exclude", problem, "start it by hvdtrain launch --survive, or use stop")


def check_task_strategy(config: Any, has_tasks: bool) -> None:
    """Check the strategy of a task or a script. has_tasks: whether it does not train networks as data only."""
    if not has_tasks:
        remedy = "use another strategy, or train a network with --model"
        raise invalid("strategy", config.strategy, "it trains networks as data only", remedy)


def check_decided(config: Any, strategy: Any, decided: Mapping[str, str]) -> None:
    """Check options of a task. strategy: its class. decided: options that a method of the task decides, by name."""
    for name, method in decided.items():
        if getattr(config, name) != getattr(type(config), name):
            raise UserError(f"--{key(name)}: the task's {method}() decides it", "leave it out", option=name)
    if not decided:
        return
    method = next(iter(decided.values()))
    if not strategy.takes_optimizer:
        given = f"--strategy {config.strategy}" if config.framework == "torch" else f"--framework {config.framework}"
        problem, remedy = f"{given} makes its updates without the task's {method}()", "leave out that method"
        raise UserError(problem, f"{remedy}, or use another strategy", option="strategy")


def check_script(script: str, is_other_script: bool, config: Any, runtime: Any) -> None:
    """Check options for a script with a training loop of its own.

    script: its name. is_other_script: whether --model is another one, from the record of a resumed run.
    """
    for name, about in facts(type(config)).items():
        if about.by_script and getattr(config, name) != getattr(type(config), name):
            reason = f"--{key(name)}: {script} decides it by itself"
            raise UserError(reason, SCRIPT_REMEDIES.get(name, "leave it out, and change the script"), option=name)
    if Split.parse(config.split).untested:
        problem = f"{script} has test rows of its own, or none"
        raise invalid("split", config.split, problem, "give TRAIN/VALIDATION, such as 0.9/0.1")
    if is_other_script:
        reason = f"the run is of {config.model}, not of {script}"
        raise UserError(reason, "rename it, or start a new run", option="model")
    if config.model not in (type(config).model, script):
        raise invalid("model", config.model, f"{script} makes its model by itself", "leave it out")


def check_rows(config: Any, samples: int, unit: str, ranks: int, devices: int) -> None:
    """Check options together with the number of training rows. unit: what a row is called. devices: of each rank."""
    batch = config.global_batch(ranks)
    if samples < (batch if config.remainder == "drop" else 1):
        problem = f"larger than the {samples} training {unit}"
        raise invalid("batch_size", config.batch_size, problem, "give a smaller one, or use --remainder pad")
    if config.shards > min(batch, samples):
        problem = f"a step has {min(batch, samples)} row(s), and each shard needs one"
        raise invalid("shards", config.shards, problem, f"give at most {min(batch, samples)}, or a larger --batch-size")
    rows = -(-min(batch, samples) // ranks // devices)
    if config.accumulate > max(rows, 1):
        problem = f"a step has {rows} row(s) on each device"
        raise invalid("accumulate", config.accumulate, problem, f"give at most {rows}")


def check_patience(config: Any, evaluated: int) -> None:
    """Check --patience together with the number of rows that are evaluated at the end of an epoch."""
    if not evaluated:
        problem = "the script evaluates nothing, so it has no score"
        raise invalid("patience", config.patience, problem, "give run.batches() test or validation rows, and evaluate")


def _check_combinations(config: Any) -> None:
    schedule = Schedule.parse(config.schedule)
    changes = config.epochs // schedule.epochs if schedule.kind == "step" else 0
    if math.log10(config.lr) + changes * math.log10(schedule.factor) > MAX_LR_EXPONENT:
        problem = f"the learning rate would exceed 10^{MAX_LR_EXPONENT}"
        raise invalid("schedule", config.schedule, problem, "give a FACTOR of at most 1, or a smaller --lr")
    if config.nesterov and (config.momentum == 0 or config.optimizer != "sgd"):
        remedy = "use --optimizer sgd and a --momentum above 0, or --no-nesterov"
        raise invalid("nesterov", config.nesterov, "requires momentum", remedy)
    if config.batch_norm == "sync" and config.accumulate > 1:
        problem = "the parts of --accumulate are normalized one by one"
        raise invalid("batch_norm", config.batch_norm, problem, "use --accumulate 1, or local")
    if config.shards:
        _check_excluded(config, "shards", WITHOUT_SHARDS)
    if config.sync_every > 1:
        _check_excluded(config, "sync_every", WITHOUT_LOCAL_STEPS)
    _check_compression(config)
    if config.freeze and (config.groups != "auto" or config.strategy == "manual"):
        raise UserError(
            "--freeze: it has no fixed number of gradients", "leave out --groups, or --strategy manual", option="freeze"
        )
    for name, about in facts(type(config)).items():
        value = getattr(config, name)
        if about.over_horovod and config.strategy not in OVER_HOROVOD and value != getattr(type(config), name):
            raise invalid(name, value, "only --strategy horovod has this option", "leave it out, or use that strategy")


WITHOUT_SHARDS = {
    "batch_scope": ("global", "batch and learning rate would depend on the number of ranks"),
    "batch_norm": ("local", "with --shards, each shard normalizes its own rows"),
    "precision": (("fp32", "bf16"), "with --shards, no loss scale may depend on when gradients overflow"),
    "accumulate": (1, "shards are the parts of a step already"),
    "compile": (False, "a host without a C++ compiler would train uncompiled, and so other bits than the others"),
    "compression": ("none", "with --shards, gradients are sent as float64"),
    "groups": ("auto", "with --shards, all gradients are one message"),
}
"""Options that --shards excludes: the values that it allows, and why there are no others."""


WITHOUT_LOCAL_STEPS = {
    "shards": (0, "with --sync-every, the optimizer's state of a rank would belong to its shards"),
    "on_nan": ("stop", "with --sync-every, ranks would skip different steps"),
    "precision": (("fp32", "bf16"), "with --sync-every, each rank would have a loss scale of its own"),
    "batch_norm": ("local", "with --sync-every, ranks exchange nothing within a step"),
    "ema": (0.0, "with --sync-every, each rank would average weights of its own"),
    "groups": ("auto", "with --sync-every, all weights are one message"),
}
"""Options that --sync-every excludes, in the same way."""


def _check_excluded(config: Any, by: str, allowed_values: Mapping[str, tuple[Any, str]]) -> None:
    """What an option excludes. allowed_values: as WITHOUT_SHARDS has them."""
    for name, (allowed, reason) in allowed_values.items():
        values = allowed if isinstance(allowed, tuple) else (allowed,)
        if (value := getattr(config, name)) is True:
            raise UserError(f"--{key(name)}: {reason}", f"leave out that or --{key(by)}", option=name)
        elif value not in values:
            raise invalid(name, value, reason, f"use {values[0]}, or leave out --{key(by)}")


def _check_compression(config: Any) -> None:
    method = parse_method(config.compression)
    if method.name == NONE:
        return
    has_fp16 = config.strategy in OVER_HOROVOD
    if config.strategy not in COMPRESSING and not (has_fp16 and method.name == FP16):
        problem = f"--strategy {config.strategy} does not compress"
        raise invalid("compression", config.compression, problem, f"use --strategy {', '.join(COMPRESSING)}")
    if method.name == FP16 and not has_fp16:
        raise invalid("compression", FP16, "only --strategy horovod has it", "use bf16, which sends as many bytes")
    if method.name == FP16 and config.sync_every > 1:
        problem = "it is Horovod's own, for gradients, and with --sync-every ranks send weights"
        raise invalid("compression", FP16, problem, "use bf16, which sends as many bytes")
    if config.by_horovod:
        return
    if config.groups != "auto":
        raise invalid("groups", config.groups, f"--compression {method} sends all gradients at once", "leave it out")
    if method.name == POWERSGD and config.precision == "fp16":
        problem = "what it has still to send would be in units of a loss scale that changes"
        raise invalid("compression", config.compression, problem, "use --precision bf16 or fp32, or --compression int8")


def _check_alone(config: Any, strategy: Any, name: str, lacks: str) -> None:
    """Of an option with which ranks make steps without the others: why this strategy cannot."""
    if not strategy.sums_shards:
        raise invalid(name, getattr(config, name), f"--strategy {config.strategy} {lacks}", f"use {SHARDED}")


def _check_audit(config: Any, runtime: Any) -> None:
    if runtime.audit and not config.shards:
        problem = "only a shard has the same bits on every rank"
        raise invalid("audit", runtime.audit, problem, "give --shards as well, or leave it out")
    if runtime.audit and config.strategy == "single":
        problem = "one process has no other rank to compare with"
        raise invalid("audit", runtime.audit, problem, "leave it out, or choose a strategy for several processes")


def _check_devices(config: Any, runtime: Any, strategy: Any) -> None:
    if runtime.devices > 1 and not strategy.many_devices:
        problem = f"--strategy {config.strategy} uses one device per process"
        remedy = "leave --devices out, or choose a strategy for several devices (--strategy help)"
        raise invalid("devices", runtime.devices, problem, remedy)
    if runtime.devices > config.batch_size:
        problem = f"a batch has {config.batch_size} row(s)"
        raise invalid("devices", runtime.devices, problem, "give each device at least one row")
