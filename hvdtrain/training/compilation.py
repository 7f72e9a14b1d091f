"""Compiling the step before training (`--compile`)."""

from __future__ import annotations

import logging
import traceback

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.interfaces import Learner, Source
from hvdtrain.runs.console import log, log_to_file


def compile_step(config: Config, learner: Learner, source: Source, rows: int) -> float:
    """Compile the learner's step for `rows` rows of the source, if --compile asks for it; the seconds that it took.

    A rank that cannot compile logs why, and trains uncompiled: 0.0. No rank waits for the others here.
    """
    if not config.compile:
        return 0.0
    try:
        return learner.compile(source[np.arange(rows)])
    except Exception as error:  # of a kind that PyTorch does not document
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        log.warning("--compile: training continues uncompiled: %s", reason)
        log_to_file(logging.INFO, traceback.format_exc())
        return 0.0
