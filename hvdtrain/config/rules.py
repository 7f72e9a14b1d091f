"""Which options go together, and with which strategies, targets, jobs and data: a table, and the check of it.

What an option decides alone (its range and its form) it says where it is defined. docs/options.py prints the table
into docs/strategies.md. `Config` and `RuntimeOptions` are checked when they are made, and import this module.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hvdtrain.config.option import facts
from hvdtrain.config.rule import DEFAULT, GIVEN, NONE, Rule, Values, above, below, but, only, up_to

STYLES = ("keras-fit", "module", "ndarray")
"""Programming styles other than a framework's usual one. The name alone is a strategy over Horovod."""
OVER_HOROVOD = ("horovod", *STYLES)
SINGLE = ("single", *(f"{style}-single" for style in STYLES))


def style_of(strategy: str) -> str:
    """The programming style of a strategy; empty for the framework's usual one."""
    return next((style for style in STYLES if f"{strategy}-".startswith(f"{style}-")), "")


def check(*options: Any, **more: Any) -> None:
    """Raise UserError for the first rule that is broken. options: Config, RuntimeOptions. more: facts by name.

    Rules for which something is not known, such as a fact that is None, are left to a later call.
    """
    known, defaults = _known(options, more), _defaults(options)
    by_user = [rule for one in options for rule in of_user_code(one.__class__)]
    for rule in (*RULES, *_broken_by_given(by_user, known, options)):
        if rule.is_broken(known, defaults):
            raise rule.error(known, defaults)


def without_effect(*options: Any, **more: Any) -> Iterator[str]:
    """What to say of options that were given and have no effect; the arguments are those of `check`."""
    known, defaults = _known(options, more), _defaults(options)
    for rule in _broken_by_given(NO_EFFECT, known, options):
        yield str(dataclasses.replace(rule, instead=rule.instead or "leave it out").error(known, defaults))


def _known(options: Iterable[Any], more: Mapping[str, Any]) -> dict[str, Any]:
    own = {field.name: getattr(one, field.name) for one in options for field in dataclasses.fields(one)}
    return own | {name: value for name, value in more.items() if value is not None}


def _defaults(options: Iterable[Any]) -> dict[str, Any]:
    return {field.name: field.default for one in options for field in dataclasses.fields(one)}


def _broken_by_given(rules: Iterable[Rule], known: Mapping[str, Any], options: Iterable[Any]) -> Iterator[Rule]:
    """Those that are broken by values that differ from the defaults and from those of the recipe, so by the user's."""
    defaults = _defaults(options)
    of_recipe = defaults | {name: value for one in options for name, value in getattr(one, "of_recipe", {}).items()}
    return (rule for rule in rules if rule.is_broken(known, defaults) and rule.is_broken(known, of_recipe))


@functools.cache
def of_user_code(kind: type) -> tuple[Rule, ...]:
    """The rules about the options of a dataclass that a script, or a method of a task, decides instead."""
    rules = []
    for name, about in facts(kind).items():
        if about.decided_by:
            remedy = SCRIPT_REMEDIES.get(name, "leave it out, and change the script")
            rules.append(Rule(name, {"script": GIVEN}, "{script} decides it by itself", remedy))
        if about.decided_by == "task":
            rules.append(
                Rule(name, {"task": GIVEN}, "{task} decides it by itself", "leave it out, and change the task")
            )
        if about.decided_by in ("optimizer", "schedule"):
            method = f"{about.decided_by}_method"
            rules.append(Rule(name, {method: GIVEN}, f"the task's {{{method}}}() decides it", "leave it out"))
    return tuple(rules)


SCRIPT_REMEDIES = {
    "accumulate": "use --shards N, with which the loop gets each batch in N parts, or a smaller --batch-size",
    "precision": "leave it out; in PyTorch, torch.autocast computes in it",
    "weights": "leave it out, and load them into the model before setup()",
    "freeze": "leave it out, and freeze parameters of the model before setup()",
}
"""What to do instead of an option that a script with a loop of its own decides, where that is not plain."""


def _together(when: Mapping[str, Values], **options: str | tuple[str, Values]) -> Iterator[Rule]:
    """Rules with one condition. options: those at fault: why, and the allowed values if they are not the default."""
    for name, about in options.items():
        why, allowed = (about, DEFAULT) if isinstance(about, str) else about
        yield Rule(name, when, why, allowed=allowed)


def _strategy(*patterns: str) -> dict[str, Values]:
    return {"strategy": only(*patterns)}


SHARDED = "--strategy single, horovod, ring, mpi or (PyTorch) ddp"
COMPRESSING = ("horovod", "ring", "mpi", "ddp")
FP32, UNSCALED, PACKED = only("fp32"), but("fp16"), only("bf16", "int8", "powersgd:*")
TORCH = only("torch")
UNNAMED, NO_POWERSGD = only(None, "auto"), but("powersgd:*")
SCRIPT, UPDATES = {"script": GIVEN}, {"schedule_method": GIVEN, "takes_optimizer": DEFAULT}
# What to do instead.
BF16 = "use bf16, which sends as many bytes"
SGD = "use --optimizer sgd and a --momentum above 0, or --no-nesterov"
LESS_SCALED = "use --precision fp32, or --compression int8"
OTHER = "use another strategy (--strategy help lists them)"
SOME_SHARDS = "give --shards 8, for example, or launch without --survive"
SURVIVING = "use --strategy horovod or ring, or launch without --survive"
NO_METHOD = "leave out that method, or use another strategy"
SCHEDULED = "leave out schedule(), and let optimizer() return one with a schedule"
NEW_RUN = "leave it out, or start a new run"
WRITE_TASK = "write a task instead (docs/own.md)"
PAD = "give a smaller one, or use --remainder pad"
ROWS = "give at most {step_rows}, or a larger --batch-size"
NOT_EVALUATED = "the script evaluates nothing, so it has no score"
EVALUATE = "give run.batches() test or validation rows, and evaluate"
RULES: tuple[Rule, ...] = (
    Rule("nesterov", {"momentum": only(0)}, "it requires momentum", SGD),
    Rule("nesterov", {"optimizer": but("sgd")}, "only SGD has it", SGD),
    Rule("batch_norm", {"accumulate": GIVEN}, "the parts of a step are normalized one by one"),
    Rule("freeze", {"groups": GIVEN}, "the number of gradients is not fixed"),
    *_together(
        {"shards": GIVEN},
        batch_scope="batch and learning rate would depend on the number of ranks",
        batch_norm="each shard normalizes its own rows",
        precision=("no loss scale may depend on when gradients overflow", UNSCALED),
        compile="a host without a C++ compiler would train uncompiled, and so other bits than the others",
        compression="sums of shards are sent without compression",
        groups="all gradients are one message",
    ),
    *_together(
        {"sync_every": GIVEN},
        shards="the optimizer's state of a rank would belong to its shards",
        on_nan="ranks would skip different steps",
        precision=("each rank would have a loss scale of its own", UNSCALED),
        batch_norm="ranks exchange nothing within a step",
        ema="each rank would average weights of its own",
        groups="all weights are one message",
        compression=("it is Horovod's own, for gradients, and ranks send weights", but("fp16")),
    ),
    Rule("class_weights", {"sample": GIVEN}, "it lets the classes count the same already", allowed=but("balanced")),
    # How gradients are sent.
    Rule("groups", {"strategy": but(*OVER_HOROVOD)}, "only --strategy horovod has this option"),
    Rule("groups", {"compression": PACKED}, "all gradients are sent at once"),
    Rule("compression", {"strategy": but(*COMPRESSING, *STYLES)}, "it does not compress"),
    Rule("compression", _strategy("module", "ndarray"), "its allreduce does not compress"),
    Rule("compression", _strategy("keras-fit"), "it has Horovod's own only", allowed=only("none", "fp16")),
    Rule("compression", _strategy("ring", "mpi", "ddp"), "only --strategy horovod has it", BF16, but("fp16")),
    Rule(
        "compression", {"precision": only("fp16")}, "what it owes has a changing loss scale", LESS_SCALED, NO_POWERSGD
    ),
    # What frameworks lack.
    Rule("compile", {"framework": but("torch")}, "torch.compile belongs to PyTorch"),
    # What strategies lack.
    *_together(
        _strategy("ndarray*", "manual", "module*", "keras-fit*"),
        accumulate="its step processes a batch in one pass",
        clip_norm="its step combines gradients and updates in one call",
        ema="its step averages no weights",
        freeze="its step updates all parameters",
        on_nan="its step cannot be skipped",
        precision=("its step is plain fp32", FP32),
    ),
    Rule("optimizer", _strategy("ndarray*", "manual"), "the hand-written update is SGD"),
    Rule("optimizer", _strategy("keras-fit*"), "the epsilon of Keras' Adam differs from that of the other frameworks"),
    Rule("compile", _strategy("manual"), "the hand-written step has a network for each device"),
    Rule("batch_norm", _strategy("module*"), "Module's graph has no collectives"),
    Rule("ema", _strategy("mirrored", "multiworker"), "variables are not assigned where a step is skipped"),
    *_together(_strategy("ddp"), accumulate="DistributedDataParallel reduces gradients in each backward pass"),
    *_together(_strategy("dataparallel"), compile="DataParallel copies the network to threads in each step"),
    *_together(
        _strategy("dataparallel", "manual", "mirrored", "keras-fit-mirrored"),
        batch_norm="each device of a process normalizes its own rows",
    ),
    Rule("strategy", {"is_code": GIVEN, "has_tasks": DEFAULT}, "it trains networks as data only", OTHER, NONE),
    Rule("framework", {"schedule_method": only("schedule")}, "its optimizers have their schedules", SCHEDULED, TORCH),
    Rule("strategy", UPDATES, "in {framework}, it updates without the task's {schedule_method}()", NO_METHOD, NONE),
    Rule("shards", {"sums_shards": DEFAULT}, "the order in which the strategy adds is not fixed", f"use {SHARDED}"),
    Rule("sync_every", {"sums_shards": DEFAULT}, "the strategy has no steps of single ranks", f"use {SHARDED}"),
    Rule("devices", {"many_devices": DEFAULT}, "the strategy uses one device per process", OTHER, only(0, 1)),
    Rule("devices", {"batch_size": below("devices")}, "each device needs a row"),
    # The job.
    Rule("audit", {"shards": DEFAULT}, "only a shard has the same bits on every rank", "give --shards as well"),
    Rule("audit", _strategy("single"), "one process has no other rank to compare with"),
    Rule("on_wrong_bits", {"audit": DEFAULT}, "wrong bits are found by audits", "give --audit as well"),
    Rule("on_wrong_bits", {"survives": DEFAULT}, "this job ends when a rank is lost", "use hvdtrain launch --survive"),
    *_together(
        {"survives": GIVEN}, sync_every="with launch --survive, the steps that a lost rank made by itself would be lost"
    ),
    Rule(
        "shards",
        {"survives": GIVEN},
        "with launch --survive, other ranks must be able to compute what a lost one computed",
        SOME_SHARDS,
        GIVEN,
    ),
    Rule(
        "strategy", {"survives": GIVEN, "can_survive": DEFAULT}, "its ranks cannot be connected again", SURVIVING, NONE
    ),
    Rule("shards", {"ranks": above("shards")}, "{ranks} ranks were started, and each needs a shard", "give more"),
    Rule("resume", {"named": DEFAULT}, "it finds the run by its name", "give the run a --name", but("auto")),
    Rule("resume", {"restarts": GIVEN}, "--restarts resumes from the run's own folder", "leave it out", UNNAMED),
    Rule(
        "name", {"is_in_array": GIVEN, "resume": UNNAMED}, "all tasks of --array would train this run", "leave it out"
    ),
    # The target and the data.
    Rule(
        "groups",
        {"gradients": below("groups")},
        "{model} has {gradients} gradients",
        "give at most {gradients}, or auto",
    ),
    Rule(
        "framework", SCRIPT, "a script with its own training loop needs torch or mxnet", WRITE_TASK, but("tensorflow")
    ),
    Rule("strategy", SCRIPT, "its learner makes the whole step", OTHER, but("manual")),
    Rule("split", SCRIPT | {"untested": GIVEN}, "{script} has test rows of its own, or none", "give 0.9/0.1", NONE),
    Rule("model", SCRIPT | {"is_other": GIVEN}, "{script} makes its model, and resumes its own runs", NEW_RUN, NONE),
    Rule("batch_size", {"full_batches": DEFAULT}, "larger than the {samples} training {unit}", PAD, NONE),
    Rule("shards", {"step_rows": below("shards")}, "a step has {step_rows} row(s), and each shard needs one", ROWS),
    Rule("accumulate", {"device_rows": below("accumulate")}, "a step has {device_rows} row(s) on each device"),
    Rule("patience", {"evaluated": DEFAULT}, NOT_EVALUATED, EVALUATE),
    Rule("score", {"evaluated": DEFAULT}, NOT_EVALUATED, EVALUATE),
)
"""Of the rules that are broken, the first one is the error."""
SMALLER = "give a smaller one, unless you mean it"
ADAM, ALONE = "no effect, as only adam and adamw have it", "no effect, as one process has no others"
NO_EFFECT: tuple[Rule, ...] = (
    *_together({"optimizer": only("sgd")}, betas=ADAM, epsilon=ADAM),
    Rule("momentum", {"optimizer": but("sgd")}, "no effect, as only sgd has it"),
    Rule("no_decay", {"weight_decay": only(0)}, "no effect, as there is no weight decay"),
    Rule("warmup_epochs", {"schedule": only("onecycle*")}, "no effect, as it has a rise of its own"),
    *_together(_strategy(*SINGLE), sync_every=ALONE, batch_scope=ALONE, check_sync=ALONE),
    Rule("balance", {"shards": DEFAULT}, "no effect, as there are no shards to move"),
    Rule("batch_norm", {"normalizes": DEFAULT}, "no effect, as {model} has no batch normalization"),
    Rule(
        "batch_size",
        {"samples": below("asked_rows")},
        "a step has all {samples} training {unit}: there are no more",
        SMALLER,
    ),
    Rule("patience", {"epochs": up_to("patience")}, "no effect in a run of {epochs} epochs"),
    Rule(
        "max_steps", {"all_steps": below("max_steps")}, "no effect, as the run has {all_steps} steps", "raise --epochs"
    ),
)
"""What changes nothing, but may be meant, as by a command line for many runs: a run warns of it."""
LAUNCH: tuple[Rule, ...] = (
    Rule("hostfile", {"hosts": GIVEN}, "--hosts names them already"),
    Rule("max_np", {"survive": DEFAULT}, "a job grows only with --survive", "give --survive as well, or leave it out"),
    Rule("max_np", {"ranks": above("max_np")}, "the job begins with {ranks} ranks", "give {ranks} or more"),
    Rule(
        "min_np",
        {"survive": DEFAULT, "restarts": DEFAULT},
        "it has no effect without --restarts or --survive",
        "give one of them as well",
    ),
    Rule("min_np", {"ranks": below("min_np")}, "the job has {ranks} ranks", "give 1 to {ranks}"),
    Rule("mpi", {"via": but("srun")}, "it is for srun only"),
    Rule(
        "survive",
        {"launcher": only("srun"), "is_allocated": DEFAULT},
        "it starts a step for each rank, which needs an allocation",
        "start it in one of salloc --no-kill, or with launch sbatch",
    ),
)
"""The same of the launcher's options."""


def check_launch(**given: Any) -> None:
    """Raise UserError for the first rule of LAUNCH that is broken. given: options of the launcher, and facts."""
    known = {name: value or False for name, value in given.items()}
    for rule in LAUNCH:
        if rule.is_broken(known, {rule.option: False}):
            raise rule.error(known, {rule.option: False})
