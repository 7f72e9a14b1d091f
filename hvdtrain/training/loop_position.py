"""Where a script's own loop is, and who trains with it: what the script may ask."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.config.options import Config
from hvdtrain.datasets.sharding import steps_per_epoch
from hvdtrain.errors import UserError
from hvdtrain.frameworks.user_code import UserLearner
from hvdtrain.interfaces.strategy import Group
from hvdtrain.training.loop import TrainingLoop
from hvdtrain.training.train import AlreadyFinished


class LoopPosition:
    """Progress, ranks and scores of a run whose loop is a script's."""

    _config: Config
    _learner: UserLearner
    _training: TrainingLoop | None
    _finished: AlreadyFinished | None

    @property
    def group(self) -> Group:
        """The processes that train together: `rank`, `size`, and what they can exchange."""
        return self._learner.group

    @property
    def rank(self) -> int:
        """Number of this process in the job."""
        return self.group.rank

    @property
    def size(self) -> int:
        """Number of processes in the job."""
        return self.group.size

    @property
    def device(self) -> str:
        """Where batches and model are: `cpu`, `cuda:0` and so on."""
        return self._learner.device

    @property
    def epoch(self) -> int:
        """Number of complete epochs, also those before a resume."""
        return self._running.at.epoch

    @property
    def steps(self) -> int:
        """Number of steps done, also those before a resume."""
        return self._running.at.step

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch, the same on every rank."""
        return self._running.run.steps_per_epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether the present batch is the last one of its epoch: then call what runs once an epoch, after `step`.

        The checkpoint that follows has it, so that a resumed run does not repeat it.
        """
        return self.steps + 1 == (self.epoch + 1) * self.steps_per_epoch

    @property
    def epochs(self) -> int:
        """Number of epochs of the run."""
        return self._config.epochs

    def steps_in_epoch(self, rows: int) -> int:
        """Number of steps in an epoch of so many training rows: what a schedule has to know before `batches`."""
        return steps_per_epoch(rows, self._config.global_batch(self.size), self._config.remainder)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._running.run.folder

    @property
    def _running(self) -> TrainingLoop | AlreadyFinished:
        running = self._training or self._finished
        if running is None:
            raise UserError(
                "the run has not begun, so it has no epoch, steps or folder yet",
                "ask for batches() first; before it there are epochs and steps_in_epoch(len(rows)) for schedules",
            )
        return running

    @property
    def scores(self) -> dict[str, float]:
        """Of the last evaluation: `loss` and the metrics, the same on all ranks; by validation rows if there are some.

        Empty before the first one of this process.
        """
        training = self._training
        evaluation = training and training.reporter.evaluations.get(training.run.dataset.evaluated)
        if not evaluation or evaluation.loss is None:
            return {}
        return {**evaluation.metrics, "loss": evaluation.loss}
