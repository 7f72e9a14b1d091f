"""Scripts that train one model by several runs, with each strategy: the gradients of a run are combined once."""

import copy

import numpy as np
import torch
from torch import nn

import hvdtrain

NUMBERS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
ROWS = NUMBERS, (NUMBERS[:, 0] > 0).astype(np.int64)
OPTIONS = ("--epochs", "1", "--batch-size", "16", "--device", "cpu", "--quiet")

torch.manual_seed(0)
first, trained, kept = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), {}, []
for strategy in ("ring", "horovod", "ddp"):
    inner = trained[strategy] = copy.deepcopy(first)
    for name in ("first", "second"):
        arguments = [*OPTIONS, "--strategy", strategy, "--name", f"{strategy}-{name}"]
        with hvdtrain.start(arguments=arguments) as run:
            model, optimizer = run.setup(inner, torch.optim.SGD(inner.parameters(), lr=0.05))
            kept.append(model)
            for numbers, labels in run.batches(ROWS):
                losses = nn.functional.cross_entropy(model(numbers), labels, reduction="none")
                run.step(losses)
for strategy, model in trained.items():
    for value, expected in zip(model.parameters(), trained["ring"].parameters(), strict=True):
        assert torch.allclose(value, expected, atol=1e-6), strategy
