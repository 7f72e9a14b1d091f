"""The random numbers that a task's own code draws."""

from __future__ import annotations

import numpy as np


def step_seeds(seed: int, step: int, rank: int, *generator: int) -> np.random.SeedSequence:
    """Seeds of a rank's step, by which a resumed run draws the same numbers. generator: its number, if it has one."""
    return np.random.SeedSequence([seed, 2, step, rank, *generator])
