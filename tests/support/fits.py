"""Tasks that `hvdtrain.fit` trains in the process of a test."""

import hvdtrain
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.runs import checkpoints
from support.drawn_models import BATCH, LR
from support.in_process import inside


def trained(folder, given, framework="torch", **options):
    """The newest checkpoint after two epochs."""
    common = {"framework": framework, "strategy": "single", "epochs": 2, "batch_size": 8, "lr": 0.1}
    folder.mkdir(exist_ok=True)
    with inside(folder):
        config, runtime = Config(**common | options), RuntimeOptions(device="cpu", quiet=True)
        return checkpoints.newest(hvdtrain.fit(given, config, runtime).folder)[1]


def as_plain(drawn):
    """Options by which a task is trained as in its framework's own loop."""
    return {"batch_size": BATCH, "lr": LR, "schedule": "constant", "warmup_epochs": 0, "seed": drawn.seed}
