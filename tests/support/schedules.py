"""Schedules of PyTorch of all kinds, of runs of any length."""

from __future__ import annotations

from torch.optim import lr_scheduler


class Falling:
    """A function that has the length of the run, which LambdaLR saves."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        return 1 - step / (self.steps + 1)


def chained(optimizer, steps, epochs):
    return lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.9), polynomial(optimizer, steps)])


def sequential(optimizer, steps, epochs):
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, steps - 2)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def polynomial(optimizer, steps, epochs=0):
    return lr_scheduler.PolynomialLR(optimizer, steps, power=2)


SCHEDULES = {
    "cosine": lambda optimizer, steps, epochs: lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "one cycle": lambda optimizer, steps, epochs: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps),
    "cyclic": lambda optimizer, steps, epochs: lr_scheduler.CyclicLR(
        optimizer, 0.01, 0.1, steps // 4, cycle_momentum="momentum" in optimizer.defaults
    ),
    "function": lambda optimizer, steps, epochs: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / steps)),
    "object": lambda optimizer, steps, epochs: lr_scheduler.LambdaLR(optimizer, Falling(steps)),
    "restarts": lambda optimizer, steps, epochs: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, steps // epochs),
    "milestones": lambda optimizer, steps, epochs: lr_scheduler.MultiStepLR(optimizer, [2, steps // 2, steps - 2]),
    "plateau": lambda optimizer, steps, epochs: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "by epoch": lambda optimizer, steps, epochs: (lr_scheduler.CosineAnnealingLR(optimizer, epochs), "epoch"),
    "two": lambda *given: [polynomial(*given), (lr_scheduler.StepLR(given[0], 1, 0.5), "epoch")],
    "chained": chained,
    "sequential": sequential,
}
"""From an optimizer, steps and epochs: as a task's schedule() returns them."""
BY_STEPS = [name for name in SCHEDULES if name not in ("by epoch", "two")]
"""Those that are one object."""
