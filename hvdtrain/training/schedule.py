"""The learning rate at a step: a pure function, so there is one schedule for all frameworks."""

from __future__ import annotations

import math

from hvdtrain.config.options import Config


def learning_rate(config: Config, step: int, steps_per_epoch: int, size: int = 1) -> float:
    """Learning rate of the step with this number, counted from 0 over all epochs, on `size` ranks.

    A linear warm-up over `warmup_epochs` reaches the peak. Then `constant`; `step` (times `lr_gamma` every
    `lr_step_epochs`); or `cosine` (half a cosine down to 0 at the last step; Loshchilov and Hutter, 2017).
    With `--batch-scope per-rank` the peak is `lr * size`: the linear scaling rule (Goyal et al., 2017).
    """
    peak = config.lr * (size if config.batch_scope == "per-rank" else 1)
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule == "step":
        return peak * config.lr_gamma ** (step // (config.lr_step_epochs * steps_per_epoch))
    if config.schedule == "cosine":
        total = config.epochs * steps_per_epoch - warmup
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total, 1)))
    return peak
