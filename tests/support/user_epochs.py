"""A script with two nested loops that logs figures, whose schedules step once an epoch, one of them by the scores.

KILL_AT: step before which rank 1, or the only rank, is killed, in a run that begins.
"""

import os
import signal

import numpy as np
import torch
from torch import nn

import hvdtrain

KILL_AT = int(os.environ.get("KILL_AT", "0"))
NUMBERS = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
ROWS = NUMBERS, (NUMBERS[:, 0] * NUMBERS[:, 1] > 0).astype(np.int64)
TEST = tuple(array[:40] for array in ROWS)

with hvdtrain.start() as run:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model, optimizer = run.setup(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    run.register(schedule=schedule, plateau=plateau)

    def evaluate(numbers, labels):
        outputs = model(numbers)
        return nn.functional.cross_entropy(outputs, labels, reduction="none"), {"right": outputs.argmax(1) == labels}

    resumed = None
    for batches in run.each_epoch(ROWS, TEST, evaluate):
        for numbers, labels in batches:
            if resumed is None:
                resumed, ranks = run.steps, run.size
            if KILL_AT and run.steps == KILL_AT and not resumed and run.rank == ranks - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            losses = nn.functional.cross_entropy(model(numbers), labels, reduction="none")
            run.log(mean_loss=losses.mean(), step=run.steps)
            if run.rank == run.size - 1:
                run.log(last=run.rank)
            run.step(losses)
        print(f"rank {run.rank}: epoch {run.epoch}, scores {sorted(run.scores)}, right {run.scores['right']:.6f}")
        schedule.step()
        plateau.step(run.scores["loss"] + run.epoch)  # grows, so the rate is halved from the second epoch on
print(f"the rate at the end is {optimizer.param_groups[0]['lr']:.6g}")
