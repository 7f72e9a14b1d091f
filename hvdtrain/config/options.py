"""The options. `Config` decides what comes out of a run, `RuntimeOptions` where it lies and how it is shown: never both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
