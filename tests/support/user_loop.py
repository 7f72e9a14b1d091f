"""A script with a training loop of its own, which can kill itself.

KILL_AT: step before which rank 1, or the only rank, is killed, in a run that begins; LEAVE_AT: step after which all
ranks leave the loop. STATE: also draw random numbers, in updates too, and use running
statistics.
"""

import os
import random
import signal

import numpy as np
import torch
from torch import nn

import hvdtrain

KILL_AT, LEAVE_AT = int(os.environ.get("KILL_AT", "0")), int(os.environ.get("LEAVE_AT", "0"))
STATE = "STATE" in os.environ
NUMBERS = np.random.default_rng(0).normal(size=(230, 4)).astype(np.float32)
ROWS = NUMBERS, (NUMBERS[:, 0] * NUMBERS[:, 1] > 0).astype(np.int64)
TEST = tuple(array[:70] for array in ROWS)


class Rare(nn.Linear):
    """Changes rows whose first number is large, and has no gradient on a rank that has none of them."""

    def forward(self, numbers):
        is_rare = numbers[:, :1] > 1.6
        return numbers + is_rare * super().forward(numbers) if is_rare.any() else numbers


class Bounded(torch.optim.AdamW):
    """Has an attribute besides those of its parameter groups, and an argument without a default."""

    def __init__(self, groups, bound):
        super().__init__(groups, lr=0.01)
        self.bound = bound

    def step(self, closure=None):
        for group in self.param_groups if STATE else ():
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad += 1e-4 * torch.randn_like(parameter)
        super().step(closure)
        for parameter in model.parameters():
            parameter.data.clamp_(-self.bound, self.bound)


with hvdtrain.start() as run:
    layers = (nn.BatchNorm1d(16), nn.Dropout(0.2)) if STATE else ()
    model = nn.Sequential(Rare(4, 4), nn.Linear(4, 16), *layers, nn.Tanh(), nn.Linear(16, 2))
    model[-1].bias.requires_grad = False
    groups = [{"params": model[:2].parameters(), "lr": 0.02}, {"params": list(model[2:].parameters())}]
    model, optimizer = run.setup(model, Bounded(groups, bound=0.4), unused_parameters=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9], 0.5)
    run.register(schedule=schedule)

    def losses(numbers, labels):
        return nn.functional.cross_entropy(model(numbers), labels, reduction="none")

    resumed = None
    for batch in run.batches(ROWS, TEST, lambda *rows: (losses(*rows), {"loss squared": losses(*rows) ** 2})):
        resumed = run.steps if resumed is None else resumed
        if KILL_AT and run.steps == KILL_AT and not resumed and run.rank == run.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers, labels = batch
        if STATE:
            noise = torch.randn_like(numbers) * np.random.rand() * random.random()
            numbers = numbers + noise
        if not run.step(losses(numbers, labels)):  # another shard of the step follows
            continue
        schedule.step()
        if STATE:
            optimizer.param_groups[1]["lr"] *= 0.99
        if LEAVE_AT and run.steps + 1 == LEAVE_AT:
            break
print(f"after the run: {run.steps} steps, {run.epoch} epochs, on {run.device}")
