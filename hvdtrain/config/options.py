"""`Config`: the options that decide the result of a run. `RuntimeOptions` has those that do not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import tyro

from hvdtrain.errors import UserError

Framework = Literal["mxnet", "torch", "tensorflow"]
TITLES: dict[str, str] = {"mxnet": "MXNet", "torch": "PyTorch", "tensorflow": "TensorFlow"}
"""The frameworks' own names."""

NUMBER_LIMIT = 1 << 53
"""Numbers of options are below it: JSON and float64 hold integers exactly up to here."""
IMAGE_SIZE = re.compile(r"([13]x)?[1-9]\d{0,4}x[1-9]\d{0,4}")
MAX_LR_EXPONENT = 30
"""Learning rates are at most 10 to this power, so that float32 holds them."""


@dataclass(frozen=True)
class Config:
    """What decides the result of a run; recorded in its folder, and identical on all ranks."""

    # The texts below the options are their --help.

    recipe: Literal["digits", "book", "fashion", "resnet20"] = "digits"
    """Named set of defaults; options given in addition override it."""
    framework: Framework = "torch"
    """Framework to train in."""
    strategy: str = "horovod"
    """How gradients are combined over ranks or devices; `--strategy help` lists those available here."""
    api: Literal["auto", "loop", "fit", "gluon", "module", "ndarray"] = "auto"
    """Programming style: loop or fit (Keras) in TensorFlow; gluon, module or ndarray in MXNet; auto is the first."""
    kvstore: Literal["device", "local", "dist_sync", "dist_device_sync"] = "device"
    """MXNet's key-value store for --strategy kvstore: over the devices of one process, or over ranks (dist_*)."""
    model: str = "lenet"
    """Network: lenet, cifar_lenet, mlp, resnet20, NETWORK.toml, or FILE.py:NAME; or a task, FILE.py:CLASS."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=VALUE for an argument of the task's class; may be given several times."""
    data: str = "digits"
    """digits, fashion-mnist, mnist, cifar10, synthetic, or your own: a folder, a file, or FILE.py:NAME."""
    image_size: str = ""
    """Size HEIGHTxWIDTH, or shape CHANNELSxHEIGHTxWIDTH, to which image files are resized; by default their own."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """If a row of the data cannot be read: stop the job, or give the row weight zero."""
    init: Literal["book", "xavier", "he"] = "xavier"
    """Initial weights: N(0, 0.01^2), Glorot's uniform distribution, or He's normal one; biases are zero."""
    seed: int = 0
    """Random seed of the initial weights and the order of samples."""
    epochs: int = 12
    """Number of passes over the training images."""
    batch_size: int = 64
    """Rows per step: over all ranks, or on each rank with --batch-scope per-rank."""
    batch_scope: Literal["global", "per-rank"] = "global"
    """per-rank multiplies batch size and learning rate by the number of ranks (linear scaling rule)."""
    remainder: Literal["drop", "pad", "exact"] = "pad"
    """Incomplete last batch of an epoch: drop it, pad it with rows of weight zero, or use it as it is."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer; adam has betas 0.9 and 0.999."""
    lr: float = 0.05
    """Peak learning rate."""
    momentum: float = 0.9
    """Momentum of sgd."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: float = 0.0
    """L2 penalty: adds weight_decay * parameter to the gradient."""
    schedule: Literal["constant", "step", "cosine"] = "cosine"
    """Learning rate schedule after the warm-up."""
    warmup_epochs: float = 1.0
    """Length of the linear learning rate warm-up, in epochs."""
    lr_gamma: float = 0.1
    """Factor by which the step schedule multiplies the learning rate."""
    lr_step_epochs: int = 5
    """Epochs between two changes of the step schedule."""
    batch_norm: Literal["local", "sync"] = "local"
    """Rows by whose mean and variance batch normalization trains: each rank's own, or those of all ranks."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of forward and backward passes; weights and updates are always fp32."""
    compile: bool = False
    """Compile the network by torch.compile before training (PyTorch); without a C++ compiler, train uncompiled."""
    clip_norm: float = 0.0
    """Maximum norm of the averaged gradient; 0 disables clipping."""
    accumulate: int = 1
    """Backward passes per step, each on a part of the rank's rows (gradient accumulation)."""
    op: Literal["average", "sum", "adasum"] = "average"
    """Horovod's reduction operation for gradients."""
    compression: Literal["none", "fp16"] = "none"
    """Horovod's compression of gradients for the allreduce."""
    groups: int | Literal["auto"] = "auto"
    """Messages in which Horovod sends the gradients; auto chooses by the size of the network."""
    on_nan: Literal["stop", "skip"] = "stop"
    """If a loss or gradient is not finite: stop the job, or skip the step on all ranks."""
    max_steps: int = 0
    """Maximum number of steps of the run; 0 for no limit."""

    def __post_init__(self) -> None:
        # A resumed run gets the settings of its record and, from the same command line, once more.
        object.__setattr__(self, "set", tuple(dict.fromkeys(self.set)))
        for name, problem, remedy in _problems(self):
            raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: {problem}", remedy)

    @property
    def resized(self) -> tuple[int | None, int, int] | None:
        """--image-size as (channels, height, width), the first None if it is not given; None without the option."""
        if not self.image_size:
            return None
        *channels, height, width = map(int, self.image_size.split("x"))
        return channels[0] if channels else None, height, width

    def global_batch(self, size: int) -> int:
        """Rows of one step over all `size` ranks."""
        return self.batch_size * (size if self.batch_scope == "per-rank" else 1)


def _problems(config: Config) -> Iterator[tuple[str, str, str]]:
    """Options whose values cannot work, each with the problem and a remedy."""
    positive = ("epochs", "batch_size", "lr", "lr_gamma", "lr_step_epochs", "accumulate")
    not_negative = ("seed", "momentum", "weight_decay", "warmup_epochs", "clip_norm", "max_steps")
    for name in positive:
        if not getattr(config, name) > 0:  # written so that NaN is caught
            yield name, "must be above 0", ""
    for name in not_negative:
        if not getattr(config, name) >= 0:
            yield name, "must be 0 or more", ""
    for name in positive + not_negative:
        if getattr(config, name) >= NUMBER_LIMIT:
            yield name, "is too large", ""
    changes = config.epochs // config.lr_step_epochs if config.schedule == "step" else 0
    if math.log10(config.lr) + changes * math.log10(config.lr_gamma) > MAX_LR_EXPONENT:
        yield "lr_gamma", f"the learning rate would exceed 10^{MAX_LR_EXPONENT}", "give at most 1"
    if config.momentum >= 1:
        yield "momentum", "must be below 1", ""
    if config.nesterov and (config.momentum == 0 or config.optimizer != "sgd"):
        yield "nesterov", "requires momentum", "use --optimizer sgd and a --momentum above 0"
    if config.batch_norm == "sync" and config.accumulate > 1:
        yield "batch_norm", "the parts of --accumulate are normalized one by one", "use --accumulate 1, or local"
    if config.groups != "auto" and config.groups < 1:
        yield "groups", "must be above 0", "give the number of messages, or auto"
    if config.strategy != "horovod":
        for name in ("op", "compression", "groups"):
            if getattr(config, name) != getattr(Config, name):
                yield name, "only Horovod has this option", "use --strategy horovod"
    if config.image_size and not IMAGE_SIZE.fullmatch(config.image_size):
        yield (
            "image_size",
            "is no size of an image",
            "give HEIGHTxWIDTH, or 1xHEIGHTxWIDTH for gray and 3x... for color",
        )
    if config.kvstore != Config.kvstore and config.strategy != "kvstore":
        yield "kvstore", "only --strategy kvstore has this option", "use it together with --strategy kvstore"
