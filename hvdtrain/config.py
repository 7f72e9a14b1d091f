"""The options. `Config` decides what comes out of a run, `Places` where it lies and how it is shown: never both."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from hvdtrain.errors import UserError

Framework = Literal["mxnet", "torch", "tensorflow"]


@dataclass(frozen=True)
class Config:
    """What decides the result of a run; recorded in its folder and equal on all ranks."""

    recipe: Literal["digits", "book", "fashion"] = "digits"
    """Named set of defaults; any option given beside it wins."""
    framework: Framework = "torch"
    """Framework that holds the network."""
    strategy: str = "horovod"
    """How the gradients of ranks or devices meet; `--strategy help` lists what this framework has here."""
    api: Literal["auto", "loop", "fit", "gluon", "module", "ndarray"] = "auto"
    """Programming style: TensorFlow has loop and fit (Keras), MXNet gluon, module and ndarray; auto is the first."""
    kvstore: Literal["device", "local", "dist_sync", "dist_device_sync"] = "device"
    """MXNet's key-value store of --strategy kvstore: over this process's devices, or over ranks (dist_*)."""
    model: Literal["lenet", "cifar_lenet"] = "lenet"
    """Network: lenet takes 1x28x28 images, cifar_lenet 3x32x32."""
    data: str = "digits"
    """digits, fashion-mnist, mnist, cifar10, synthetic, or a folder of your own (.npz or IDX files)."""
    init: Literal["book", "xavier"] = "xavier"
    """First weights: N(0, 0.01^2) or Glorot's uniform; biases zero."""
    seed: int = 0
    """Decides first weights and the order of samples."""
    epochs: int = 12
    """Passes over the training images."""
    batch_size: int = 64
    """Rows of a step: of all ranks together, or of each rank with --batch-scope per-rank."""
    batch_scope: Literal["global", "per-rank"] = "global"
    """per-rank multiplies batch and learning rate by the number of ranks (linear scaling)."""
    remainder: Literal["drop", "pad", "exact"] = "pad"
    """Incomplete last batch: leave out, fill with rows of weight zero, or take as it is."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer; adam uses betas 0.9 and 0.999."""
    lr: float = 0.05
    """Peak learning rate."""
    momentum: float = 0.9
    """Momentum of sgd."""
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: float = 0.0
    """Added to the gradient as weight_decay * parameter (L2)."""
    schedule: Literal["constant", "step", "cosine"] = "cosine"
    """Learning rate after the warm-up."""
    warmup_epochs: float = 1.0
    """Length of the linear warm-up."""
    lr_gamma: float = 0.1
    """Factor of the step schedule."""
    lr_step_epochs: int = 5
    """Epochs between two steps of the step schedule."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward; weights and updates stay fp32."""
    clip_norm: float = 0.0
    """Largest norm of the averaged gradient; 0 does not clip."""
    accumulate: int = 1
    """Backward passes per step; each takes a part of the rank's rows."""
    op: Literal["average", "sum", "adasum"] = "average"
    """How Horovod joins gradients."""
    compression: Literal["none", "fp16"] = "none"
    """What Horovod sends gradients as."""
    on_nan: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite: end the job, or skip the step on all ranks."""
    max_steps: int = 0
    """End after this many steps in all; 0 does not limit."""

    def __post_init__(self) -> None:
        for name, problem in _problems(self):
            raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: {problem}")

    def global_batch(self, size: int) -> int:
        """Rows of one step over all ranks."""
        return self.batch_size * (size if self.batch_scope == "per-rank" else 1)


def _problems(config: Config) -> list[tuple[str, str]]:
    """Options whose values cannot work, with what would."""
    positive = ("epochs", "batch_size", "lr", "lr_gamma", "lr_step_epochs", "accumulate")
    not_negative = ("seed", "momentum", "weight_decay", "warmup_epochs", "clip_norm", "max_steps")
    problems = [(name, "give a number above 0") for name in positive if not getattr(config, name) > 0]
    problems += [(name, "give 0 or more") for name in not_negative if not getattr(config, name) >= 0]
    if config.momentum >= 1:
        problems.append(("momentum", "give a number below 1"))
    if config.nesterov and (config.momentum == 0 or config.optimizer != "sgd"):
        problems.append(("nesterov", "it needs --optimizer sgd and a --momentum above 0"))
    if config.strategy != "horovod":
        for name in ("op", "compression"):
            if getattr(config, name) != getattr(Config, name):
                problems.append((name, "Horovod does this; choose --strategy horovod"))
    if config.kvstore != Config.kvstore and config.strategy != "kvstore":
        problems.append(("kvstore", "choose --strategy kvstore with it"))
    return problems


@dataclass(frozen=True)
class Places:
    """Where a run lies, what it uses of this machine, and how it is shown; none of it changes the result."""

    runs: Path = Path("runs")
    """Folder of all runs."""
    name: str = ""
    """Name of this run's folder; by default made of data, framework, strategy and time."""
    resume: Path | None = None
    """Run folder or checkpoint to continue from; its recorded options become the defaults."""
    auto_resume: bool = False
    """Go on in the folder of --name where it holds a checkpoint, else begin there: for jobs that are started again."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto takes a GPU where the framework sees one."""
    elastic: bool = False
    """Ranks may come and go (Horovod Elastic); started by launch horovodrun --elastic."""
    devices: int = 0
    """Devices of one process, for strategies that use several; 0 takes all its GPUs, or two parts of the CPU."""
    offline: bool = False
    """Never touch the network."""
    checkpoint_every: int = 0
    """Steps between checkpoints, beside the one at each epoch's end; 0 for none."""
    keep: int = 3
    """Newest checkpoints to keep, beside the best."""
    profile: int = 0
    """Steps measured at the end without joining gradients, to tell computing from communicating; 0 for none."""
    hang_timeout: float = 0.0
    """Seconds without a step that end the job, with every rank's stacks; 0 for ten of the longest step, 30 at least."""
    check_sync: int = 0
    """Steps between comparisons of all ranks' parameter checksums; 0 compares at the start and at the end."""
    log_every: int = 20
    """Steps between two records of loss and speed."""
    tensorboard: bool = False
    """Write TensorBoard events as well."""
    quiet: bool = False
    """Show nothing on the console but errors."""

    def __post_init__(self) -> None:
        for name, least in PLACES_LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: give {least} or more")
        if self.auto_resume and (self.resume or not self.name):
            raise UserError("--auto-resume: give the run a --name, by which it is found again, and no --resume")


PLACES_LEAST = {
    "keep": 1,
    "log_every": 1,
    "checkpoint_every": 0,
    "check_sync": 0,
    "devices": 0,
    "profile": 0,
    "hang_timeout": 0,
}

# What decides a recipe, beside the defaults of Config.
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {},
    # Dive into Deep Learning, "Multi-GPU Computation": plain SGD, N(0, 0.01^2), batch 256, lr 0.2, 10 epochs.
    "book": {
        "data": "fashion-mnist",
        "init": "book",
        "epochs": 10,
        "batch_size": 256,
        "lr": 0.2,
        "momentum": 0.0,
        "schedule": "constant",
        "warmup_epochs": 0.0,
    },
    # The best found for the book's network, batch and number of epochs.
    "fashion": {
        "data": "fashion-mnist",
        "init": "xavier",
        "epochs": 10,
        "batch_size": 256,
        "lr": 0.16,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 2e-4,
        "schedule": "cosine",
        "warmup_epochs": 1.0,
    },
}


def from_recipe(name: str, **options: Any) -> Config:
    """The recipe's options, with `options` on top."""
    return Config(**{"recipe": name, **RECIPES[name], **options})


def recorded(path: Path) -> Config:
    """The options of the run that `path` (a run's folder, or a checkpoint in it) belongs to."""
    folder = path if os.path.isfile(path / "config.json") else path.parent.parent
    try:
        return from_record(json.loads((folder / "config.json").read_text())["config"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"--resume {path}: no readable config.json of a run there ({error}); "
            "give a folder under runs/ or one of its checkpoints"
        ) from None


def from_record(record: dict[str, Any]) -> Config:
    """A Config from its JSON form. Raises TypeError for names or values that this version does not know."""
    for name, kind in get_type_hints(Config).items():
        if name in record and not _is(record[name], kind):
            raise TypeError(f"{name} is {record[name]!r:.80}")
    return Config(**record)


def _is(value: Any, kind: Any) -> bool:
    """Whether a JSON value is one of an option of this type."""
    if get_args(kind):
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int and abs(value) < 1 << 53)


def to_record(options: Config | Places) -> dict[str, Any]:
    """Options as JSON values."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(options).items()
    }
