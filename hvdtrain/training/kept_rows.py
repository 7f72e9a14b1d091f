"""Training data that the learner keeps on its device, so that steps copy only the numbers of their rows there."""

from __future__ import annotations

from hvdtrain.datasets.arrays import ArraySource
from hvdtrain.runs.console import log
from hvdtrain.training.run import Run


def keep_rows(run: Run) -> bool:
    """Let the learner keep the training data if it is in memory and fits (`--device-data`); whether it does.

    Each rank decides by itself. A task's rows of --on-bad-row skip are checked when they are read, on the host.
    """
    learner, source = run.learner, run.dataset.train
    checked = run.target.labels and run.config.on_bad_row == "skip"
    if run.runtime.device_data == "off" or checked or not isinstance(source, ArraySource):
        return False
    if not learner.keep_rows(source.arrays):
        return False
    size = sum(array.nbytes for array in source.arrays)
    log.info("the training data, %.0f MB, is kept on %s (--device-data)", size / 1e6, learner.device)
    return True
