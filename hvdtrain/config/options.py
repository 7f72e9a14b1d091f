"""The options of training: `Config` decides the result of a run, `RuntimeOptions` does not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hvdtrain.config import rules
from hvdtrain.config.forms import (
    FP16,
    MAX_RANGE,
    MAX_RANK,
    NONE,
    Betas,
    Intervals,
    Schedule,
    Split,
    StepRange,
    check_name,
    parse_class_weights,
    parse_image_size,
    parse_method,
)
from hvdtrain.config.option import Resume, as_options, option
from hvdtrain.config.recipes import RECIPES
from hvdtrain.config.rules import OVER_HOROVOD
from hvdtrain.config.score import AUTO, check_choice
from hvdtrain.system.rank_info import RUN_NAME
from hvdtrain.system.start_folder import from_start

Framework = Literal["mxnet", "torch", "tensorflow"]
AUTO_RESUME = Path("auto")
"""The value of --resume that finds the run by its name."""
MAX_WORKERS = 256
"""More threads or processes of one rank are a mistake."""
MAX_SHARDS = 4096
"""A batch of more shards would have a row or two in each."""
MAX_THREADS = 1024
"""More threads of one rank are a mistake."""
# The forms of texts.
IMAGE_SIZE = "HEIGHTxWIDTH, or 1xHEIGHTxWIDTH for gray and 3x... for color"
SPLIT = "TRAIN/VALIDATION/TEST, such as 0.8/0.1/0.1, or for data with a test part TRAIN/VALIDATION, such as 0.9/0.1"
CLASS_WEIGHTS = "balanced, or NAME=WEIGHT,... with names of classes, such as scab=3,rot=10"
SCHEDULE = "constant, step:FACTOR:EPOCHS, cosine, polynomial:POWER or onecycle:SHARE"
COMPRESSION = f"none, fp16, bf16, int8, or powersgd:R with a rank R from 1 to {MAX_RANK}, such as 2"
INTERVALS = "steps, such as 100, or seconds, such as 60s"
NAME = "a name such as first; --runs says which folder it is in"
SCORE = "max:NAME or min:NAME with the name of a metric, such as min:perplexity, or min:loss"
STEPS = f"two numbers of steps, such as 100:110, of at most {MAX_RANGE} steps"

# The options' groups in --help.
MODEL = "network and framework"
DATA = "data"
OPTIMIZER = "optimizer and schedule"
GRADIENTS = "gradients over ranks"
LOCAL_STEPS = "local steps between sums over ranks"
BITS = "the same bits on any number of ranks"
RUN = "the run's folder and checkpoints"
MACHINE = "this machine"
WATCH = "logs, timelines and checks"


@dataclass(frozen=True)
class Config:
    """What decides the result of a run; recorded in its folder, and identical on all ranks."""

    # The texts below the options are their --help.

    recipe: Literal["digits", "book", "fashion", "resnet20"] = option(
        "digits", MODEL, decided_by="script", only_distributes=True, is_common=True
    )
    """Named set of defaults; options given in addition override it."""
    framework: Framework = option("torch", MODEL, resume=Resume.STATE, only_distributes=True, is_common=True)
    """Framework to train in."""
    strategy: str = option("horovod", MODEL, only_distributes=True, is_common=True)
    """How gradients are combined over ranks or devices, and in which programming style; `--strategy help` lists those
    available here."""
    model: str = option("lenet", MODEL, resume=Resume.NETWORK, affects_speed=True, is_common=True)
    """Network: lenet, cifar_lenet, mlp, resnet20, NETWORK.toml, or FILE.py:NAME; or a task, FILE.py:CLASS."""
    arg: tuple[str, ...] = option((), MODEL, is_repeated=True, resume=Resume.NETWORK, decided_by="script")
    """NAME=VALUE for an argument of the task's class; may be given several times."""
    data: str = option(
        "digits", DATA, resume=Resume.SAME, decided_by="task", affects_speed=True, is_path=True, is_common=True
    )
    """digits, fashion-mnist, mnist, cifar10, synthetic, or your own: a folder, a file, or FILE.py:NAME."""
    image_size: str = option(
        "", DATA, resume=Resume.DATA, decided_by="task", parse=parse_image_size, form=IMAGE_SIZE, is_common=True
    )
    """Size HEIGHTxWIDTH, or shape CHANNELSxHEIGHTxWIDTH, to which image files are resized; by default their own."""
    label: str = option("", DATA, resume=Resume.DATA, decided_by="task")
    """Column of labels in a table; by default the one that is called label, labels, target, class or y."""
    columns: str = option("", DATA, resume=Resume.DATA, decided_by="task")
    """Columns of a table that the network gets, as A,B,C; by default all others that become numbers, or images."""
    target: Literal["auto", "classes", "regression"] = option("auto", DATA, resume=Resume.DATA, decided_by="task")
    """What labels of a table are: classes, or numbers to predict; auto: the latter for fractions and many integers."""
    scale: Literal["auto", "none", "standard"] = option("auto", DATA, resume=Resume.DATA, decided_by="task")
    """Numbers of a table as they are, or by mean and deviation of the training rows; auto: all but numbers alone."""
    split: str = option("", DATA, resume=Resume.DATA, parse=Split.parse, form=SPLIT, is_common=True)
    """Shares TRAIN/VALIDATION/TEST of the rows, by --seed and class; TRAIN/VALIDATION for data with a test part, and
    TRAIN for a training and a test part. By validation rows the best weights are chosen, and test data is used once, at
    the end."""
    class_weights: str = option("", DATA, parse=parse_class_weights, form=CLASS_WEIGHTS)
    """Weights of classes in the loss: balanced, by which all classes count the same, or NAME=WEIGHT,... (others: 1)."""
    weight_column: str = option("", DATA, resume=Resume.DATA, decided_by="task")
    """Column of a table with the weights of its rows in the loss."""
    sample: Literal["each", "balanced"] = option("each", DATA)
    """Rows of an epoch: each once, or the same number of each class (balanced), those of small classes repeatedly."""
    on_bad_row: Literal["stop", "skip"] = option("stop", DATA)
    """If a row of the data cannot be read: stop the job, or give the row weight zero."""
    init: Literal["book", "xavier", "he"] = option("xavier", MODEL, resume=Resume.SAME, decided_by="task")
    """Initial weights: N(0, 0.01^2), Glorot's uniform distribution, or He's normal one; biases are zero."""
    weights: str = option("", MODEL, decided_by="script", is_path=True, is_common=True)
    """Weights to begin with, by names: a .safetensors file, a state dict of PyTorch (.pt, .pth), a run, RUN/best or a
    checkpoint."""
    freeze: tuple[str, ...] = option((), MODEL, is_repeated=True, decided_by="script", affects_speed=True)
    """Pattern of names of parameters that are not trained, such as `conv1.*`; may be given several times."""
    seed: int = option(
        0, MODEL, minimum=0, resume=Resume.SAME, in_sweep="use --seeds N for the seeds 0 to N-1", is_common=True
    )
    """Random seed of the initial weights and the order of samples."""
    epochs: int = option(12, OPTIMIZER, above=0, is_common=True)
    """Number of passes over the training images."""
    batch_size: int = option(64, DATA, above=0, resume=Resume.POSITION, is_common=True)
    """Rows per step: over all ranks, or on each rank with --batch-scope per-rank."""
    batch_scope: Literal["global", "per-rank"] = option("global", DATA, resume=Resume.POSITION)
    """per-rank multiplies batch size and learning rate by the number of ranks (linear scaling rule)."""
    remainder: Literal["drop", "pad", "exact"] = option("pad", DATA, resume=Resume.POSITION, affects_speed=True)
    """Incomplete last batch of an epoch: drop it, pad it with rows of weight zero, or use it as it is."""
    optimizer: Literal["sgd", "adam", "adamw"] = option(
        "sgd", OPTIMIZER, resume=Resume.STATE, decided_by="optimizer", affects_speed=True, is_common=True
    )
    """Optimizer; adamw is adam with decoupled weight decay."""
    lr: float = option(0.05, OPTIMIZER, above=0, decided_by="optimizer", is_common=True)
    """Peak learning rate."""
    momentum: float = option(0.9, OPTIMIZER, minimum=0, below=1, resume=Resume.STATE, decided_by="optimizer")
    """Momentum of sgd."""
    nesterov: bool = option(False, OPTIMIZER, decided_by="optimizer")
    """Use Nesterov momentum."""
    betas: str = option(
        "0.9:0.999", OPTIMIZER, decided_by="optimizer", parse=Betas.parse, form="BETA1:BETA2, such as 0.9:0.999"
    )
    """Decay rates BETA1:BETA2 of the mean of gradients, and of squared gradients, in adam and adamw."""
    epsilon: float = option(1e-8, OPTIMIZER, above=0, decided_by="optimizer")
    """What adam and adamw add to the root of the mean of squares, which they divide by."""
    weight_decay: float = option(0.0, OPTIMIZER, minimum=0, decided_by="optimizer")
    """L2 penalty: adds weight_decay * parameter to the gradient; adamw subtracts lr times that from the parameter."""
    no_decay: tuple[str, ...] = option((), OPTIMIZER, is_repeated=True, decided_by="optimizer")
    """Pattern of the names of parameters without weight decay, such as `*.bias`; may be given several times."""
    schedule: str = option(
        "cosine", OPTIMIZER, decided_by="schedule", parse=Schedule.parse, form=SCHEDULE, is_common=True
    )
    """Learning rate after the warm-up: constant, step:FACTOR:EPOCHS (left out: 0.1, 5), cosine, polynomial:POWER (left
    out: 1), or onecycle:SHARE of the run in which it rises (left out: 0.3)."""
    warmup_epochs: float = option(1.0, OPTIMIZER, minimum=0, decided_by="schedule")
    """Length of the linear learning rate warm-up, in epochs; onecycle has its rise instead."""
    batch_norm: Literal["local", "sync"] = option("local", MODEL, decided_by="task")
    """Rows by whose mean and variance batch normalization trains: each rank's own, or those of all ranks."""
    precision: Literal["fp32", "bf16", "fp16"] = option(
        "fp32", MODEL, resume=Resume.STATE, decided_by="script", affects_speed=True
    )
    """Precision of forward and backward passes; weights and updates are always fp32."""
    compile: bool = option(False, MODEL, decided_by="script", affects_speed=True)
    """Compile the network by torch.compile before training (PyTorch); without a C++ compiler, train uncompiled."""
    clip_norm: float = option(0.0, OPTIMIZER, minimum=0, affects_speed=True)
    """Maximum norm of the averaged gradient; 0 disables clipping."""
    accumulate: int = option(
        1,
        OPTIMIZER,
        above=0,
        decided_by="script",
        affects_speed=True,
    )
    """Backward passes per step, each on a part of the rank's rows (gradient accumulation)."""
    compression: str = option(
        "none", GRADIENTS, affects_speed=True, only_distributes=True, parse=parse_method, form=COMPRESSION
    )
    """How ranks send gradients: none, bf16, fp16, int8, or powersgd:R, of rank R."""
    groups: int | Literal["auto"] = option("auto", GRADIENTS, above=0, only_distributes=True)
    """Messages in which Horovod sends the gradients; auto chooses by the size of the network."""
    sync_every: int = option(1, LOCAL_STEPS, minimum=1, affects_speed=True)
    """Steps that each rank makes on its own rows until ranks average what these have changed in the weights; 1 averages
    the gradients of each step."""
    shards: int = option(0, BITS, minimum=0, maximum=MAX_SHARDS, affects_speed=True, is_common=True)
    """Shards of each global batch: any number of ranks up to it trains the same bits; 0 for a part per rank."""
    threads: int = option(0, BITS, minimum=0, maximum=MAX_THREADS, affects_speed=True)
    """Threads that compute an operation in each rank; 0 is 1 with --shards, else what OMP_NUM_THREADS says,
    or an equal share of the cores of the host."""
    isa: Literal["auto", "avx2", "avx512"] = option("auto", BITS, affects_speed=True)
    """Instruction set that all libraries use at most; auto is the best one of the host."""
    ema: float = option(
        0.0, OPTIMIZER, minimum=0, below=1, resume=Resume.STATE, decided_by="script", affects_speed=True
    )
    """Decay of a moving average of the weights, which is evaluated and exported instead of them; 0 has none."""
    on_nan: Literal["stop", "skip"] = option("stop", OPTIMIZER, affects_speed=True)
    """If a loss or gradient is not finite: stop the job, or skip the step on all ranks."""
    max_steps: int = option(0, OPTIMIZER, minimum=0)
    """Maximum number of steps of the run, which shortens neither warm-up nor schedule; 0 for no limit."""
    patience: int = option(0, OPTIMIZER, minimum=0)
    """End the run after so many epochs without a better score (--score); 0 for none."""
    score: str = option(AUTO, RUN, parse=check_choice, form=SCORE)
    """Figure of evaluations that says which checkpoint is the best, and when --patience ends the run: max:METRIC,
    min:METRIC or min:loss; auto takes the metric accuracy if there is one, else the lowest loss."""

    def __post_init__(self) -> None:
        as_options(self)
        # A resumed run gets the settings of its record and, from the same command line, once more.
        for name in ("arg", "no_decay", "freeze"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        # A run that is resumed gets its framework and its options one after the other.
        rules.check(self, framework=None)

    @property
    def resized(self) -> tuple[int | None, int, int] | None:
        """--image-size as (channels, height, width), the first None if it is not given; None without the option."""
        return parse_image_size(self.image_size) if self.image_size else None

    @property
    def score_choice(self) -> str:
        """--score; empty where nobody chose one."""
        return "" if self.score == AUTO else self.score

    @property
    def of_recipe(self) -> dict[str, Any]:
        """What the recipe gives."""
        return RECIPES[self.recipe]

    @property
    def over_horovod(self) -> bool:
        """Whether Horovod connects the ranks."""
        return self.strategy in OVER_HOROVOD

    @property
    def by_horovod(self) -> bool:
        """Whether Horovod itself combines the gradients, as soon as each is computed."""
        return self.over_horovod and self.compression in (NONE, FP16)

    def parts(self, size: int) -> int:
        """Parts of a global batch of `size` ranks: shards, or one for each rank."""
        return self.shards or size

    def global_batch(self, size: int) -> int:
        """Rows of one step over all `size` ranks."""
        return self.batch_size * (size if self.batch_scope == "per-rank" else 1)


@dataclass(frozen=True)
class RuntimeOptions:
    """Where a run is stored, what it uses of this host, how it is shown: what does not change its result."""

    runs: Path = option(
        Path("runs"), RUN, is_place=True, per_rank=True, in_sweep="the runs are in its own folder: use --output"
    )
    """Folder that contains all runs."""
    name: str = option(
        "",
        RUN,
        is_place=True,
        in_sweep="it names each trial's run by its options",
        parse=check_name,
        form=NAME,
        is_common=True,
    )
    """Name of this run's folder; by default data, framework, strategy, number of ranks and time."""
    resume: Path | None = option(None, RUN, is_place=True, in_sweep="it resumes trials by itself", is_common=True)
    """Run folder, its best checkpoint (RUN/best), or a checkpoint to resume; recorded options become the defaults. auto
    resumes the run --name if it has a checkpoint, else starts it: for jobs that are restarted automatically."""
    device: Literal["auto", "cpu", "gpu"] = option("auto", MACHINE)
    """Device; auto uses a GPU if the framework finds one."""
    bind: Literal["auto", "none"] = option("auto", MACHINE, per_rank=True)
    """auto binds each rank to its share of the host's cores where each gets two hardware threads or more."""
    balance: Literal["auto", "off"] = option("auto", BITS)
    """With --shards, auto moves shards from slow ranks to fast ones while they train, which changes no bits."""
    devices: int = option(0, MACHINE, minimum=0)
    """Devices per process, for strategies that use several; 0 for all its GPUs, or two virtual CPU devices."""
    workers: int | Literal["auto"] = option("auto", DATA, minimum=0, maximum=MAX_WORKERS, per_rank=True)
    """Threads or processes that read rows ahead; auto chooses by the data and the cores of the rank, 0 reads none."""
    checkpoint_every: tuple[str, ...] = option(("60s",), RUN, is_repeated=True, parse=Intervals.parse, form=INTERVALS)
    """Steps (100) or seconds (60s) between checkpoints, in addition to those at the end of each epoch; may be given
    twice. By time they are written at the next logging step, and within 1 % of the time; 0s for none by time."""
    keep: int = option(3, RUN, minimum=1, per_rank=True)
    """Number of newest checkpoints to keep, in addition to the best."""
    hang_timeout: float = option(0.0, WATCH, minimum=0, per_rank=True)
    """Seconds without a step after which the job is ended as hung; 0 for ten times the longest step, at least 30."""
    check_sync: int = option(0, WATCH, minimum=0)
    """Steps between comparisons of all ranks' parameters; 0 compares them only at the start, evaluations and
    checkpoints."""
    audit: int = option(0, WATCH, minimum=0)
    """With --shards: steps between audits, in which a second rank computes a shard and all compare the bits; 0 for
    none."""
    on_wrong_bits: Literal["stop", "exclude"] = option("stop", WATCH)
    """If an audit finds that a rank computes wrong bits: stop the job, or go on without the rank and its host (with
    launch --survive)."""
    log_every: int = option(20, WATCH, minimum=1)
    """Steps between logging steps, which record loss and speed and check for stop requests."""
    timeline: str = option("", WATCH, parse=StepRange.parse, form=STEPS)
    """Steps FIRST:LAST, such as 100:110, of which to record what each rank did and waited for, in one file."""
    tracker: tuple[str, ...] = option((), WATCH, is_repeated=True, per_rank=True, is_common=True)
    """Where records also go: tensorboard, mlflow, wandb, or a package's; may be given several times."""
    on_end: str = option("", WATCH, per_rank=True)
    """Shell command that rank 0 runs when training ends, with HVDTRAIN_STATUS and more in its environment."""
    quiet: bool = option(False, WATCH, per_rank=True)
    """Print only errors on the console."""

    def __post_init__(self) -> None:
        as_options(self)
        object.__setattr__(self, "tracker", tuple(dict.fromkeys(self.tracker)))
        object.__setattr__(self, "runs", from_start(self.runs))
        object.__setattr__(self, "resume", (self.resumed and from_start(self.resumed)) or self.resume)
        rules.check(self, named=bool(self.name or os.environ.get(RUN_NAME)))

    @property
    def auto_resume(self) -> bool:
        """Whether the run of that name is resumed if it has a checkpoint."""
        return self.resume == AUTO_RESUME

    @property
    def resumed(self) -> Path | None:
        """The run, or the checkpoint, that --resume names."""
        return None if self.auto_resume else self.resume


def from_recipe(name: str, **options: Any) -> Config:
    """The recipe's options, overridden by `options`. Raises KeyError for an unknown name."""
    return Config(**{"recipe": name, **RECIPES[name], **options})
