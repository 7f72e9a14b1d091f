"""What a run shows and records while it trains: metrics files, progress display, warnings."""

from __future__ import annotations

from hvdtrain.interfaces import Position
from hvdtrain.runs.console import Display, log
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.training.evaluation import Scores
from hvdtrain.training.losses import SpikeDetector
from hvdtrain.training.run import Run


class Reporter:
    """Rank 0 writes metrics and shows progress; every rank logs warnings.

    Raises OSError if the metrics file cannot be created.
    """

    def __init__(self, run: Run, first_step: int) -> None:
        self._run = run
        self._writer = MetricsWriter(run.folder, run.runtime.tensorboard) if run.is_rank_0 else None
        self._display = Display(run.last_step, first_step, run.is_rank_0 and not run.runtime.quiet)
        self._spikes = SpikeDetector()
        self._accuracy = float("nan")

    def started(self) -> None:
        """Show what is trained, and where."""
        run, config = self._run, self._run.config
        learner, size = run.learner, run.group.size
        where = f"{learner.devices} devices ({learner.device})" if learner.devices > 1 else learner.device
        self.show(
            f"{config.model} on {config.data} in {config.framework}, {config.strategy}, {size} rank(s) on {where}, "
            f"global batch {run.global_batch}; record in {run.folder}"
        )

    def interval(self, position: Position, loss: float, speed: dict[str, float]) -> None:
        """The steps up to `position` since the last logging step: mean loss (nats), and what `Throughput` measured."""
        run, step = self._run, position.step
        if self._writer:
            lr = run.learning_rate(max(step - 1, 0))
            values = {"loss": loss, "lr": lr, **speed, "skipped": run.learner.skipped}
            self._writer.write("train", step, epoch=step / run.steps_per_epoch, **values)
        median = self._spikes.exceeded_median(loss)
        if median is not None:
            log.warning("the loss jumped to %.4g before step %d; its recent median was %.4g", loss, step, median)
        text = f"{speed['images_per_s']:,.0f} images/s  loss {loss:.4f}  accuracy {self._accuracy:.4f}"
        self._display.update(step, position.epoch + 1, text)

    def evaluated(self, position: Position, scores: Scores, seconds: list[float]) -> None:
        """An evaluation, and the seconds that each rank took for its share."""
        self._accuracy = scores.accuracy
        step, epoch = position.step, position.step / self._run.steps_per_epoch
        if self._writer:
            self._writer.write("ranks", step, evaluation_s=seconds)
            self._writer.write("test", step, epoch=epoch, loss=scores.loss, accuracy=scores.accuracy)
        self.show(f"epoch {epoch:g}: test loss {scores.loss:.4f}, accuracy {scores.accuracy:.4f}")

    def show(self, text: str) -> None:
        """Print a line on rank 0's console and write it to each rank's log."""
        self._display.show(text)

    def close(self) -> None:
        """Close the metrics files and end the progress bar; `show` still works."""
        self._display.close()
        if self._writer:
            self._writer.close()
