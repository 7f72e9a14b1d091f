"""The loop. No framework, no rank arithmetic: the learner knows the one, `shard` the other."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.frameworks.registry import build_learner, run_elastic
from hvdtrain.interfaces import Batch, Checkpoint, Dataset, ElasticMemory, FitLearner, Learner, Position
from hvdtrain.networks.description import Weights
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import checkpoints, console, metrics, record
from hvdtrain.runs.console import Display, log
from hvdtrain.runs.metrics import LossMeter, Scores, Spikes
from hvdtrain.system import rank_info
from hvdtrain.training import consistency
from hvdtrain.training.preemption import StopRequest
from hvdtrain.training.schedule import learning_rate
from hvdtrain.training.throughput import Speed
from hvdtrain.training.watchdog import Watchdog

EVALUATION_BATCH = 256
ROWS_TOLD = 8


def train(config: Config, runtime: RuntimeOptions) -> Path:
    """Train as `config` says; returns the run's folder.

    Raises UserError where options, data or installation do not allow it, TrainingError where training fails.
    """
    dataset = load_dataset(config.data, NETWORKS[config.model], runtime.offline)
    if runtime.elastic:
        return run_elastic(config, lambda memory: _train(config, runtime, dataset, memory))
    return _train(config, runtime, dataset, None)


def _train(config: Config, runtime: RuntimeOptions, dataset: Dataset, memory: ElasticMemory | None) -> Path:
    """With the ranks that are there now. memory: of an elastic job, which comes here again after each change."""
    weights = initial_weights(NETWORKS[config.model], config.init, config.seed)
    learner = build_learner(config, weights, runtime)
    consistency.same_options(learner.group, config, dataset.fingerprint)
    folder, position = resume(config, runtime, learner, dataset, memory)
    Training(config, runtime, learner, dataset, folder, position, memory).run()
    learner.group.close()
    return folder


def resume(
    config: Config, runtime: RuntimeOptions, learner: Learner, dataset: Dataset, memory: ElasticMemory | None = None
) -> tuple[Path, Position]:
    """The run's folder, and where in it training stands; puts a checkpoint into the learner where one is resumed."""
    group = learner.group
    if memory:  # rank 0 was there before
        kept = group.broadcast(memory.saved if group.rank == 0 else None)
        if kept:
            console.open_log(kept[0], group.rank, runtime.quiet)
            return kept[0], _restore(config, learner, dataset, *kept)
    path: Path | None = None
    saved: Checkpoint | None = None
    if runtime.resume or runtime.auto_resume:  # rank 0 alone reads: the other hosts need not see the file
        path, saved = group.broadcast(_found(runtime) if group.rank == 0 else None)
    old = path.parent.parent if path else None
    folder = group.broadcast(record.choose_folder(config, runtime, group.size, old) if group.rank == 0 else None)
    console.open_log(folder, group.rank, runtime.quiet)
    if path is None or saved is None:
        return folder, Position(global_batch=config.global_batch(group.size), seed=config.seed)
    return folder, _restore(config, learner, dataset, path, saved)


def _found(runtime: RuntimeOptions) -> tuple[Path | None, Checkpoint | None]:
    """The checkpoint to go on from; None, None where a run that is to be resumed by itself has none yet."""
    if runtime.resume:
        return checkpoints.newest(runtime.resume)
    folder = runtime.runs / runtime.name
    return checkpoints.newest(folder) if checkpoints.listed(folder / "checkpoints") else (None, None)


def _restore(config: Config, learner: Learner, dataset: Dataset, path: Path, saved: Checkpoint) -> Position:
    expected = (
        ("--model", config.model, saved.model),
        ("--seed", config.seed, saved.position.seed),
        ("the fingerprint of --data", dataset.fingerprint[:16], saved.data[:16]),
    )
    for name, ours, theirs in expected:
        if ours != theirs:
            raise UserError(f"--resume {path}: {name} is {ours} here and {theirs} in the checkpoint; make them equal")
    checkpoints.network(path, saved)
    learner.load(saved.weights)
    position = rebatched(config, saved.position, len(dataset.train_images), learner.group.size)
    log.info("resumed from %s: epoch %d, step %d", path, position.epoch + 1, position.step)
    _restore_optimizer(config, learner, saved)
    return position


def rebatched(config: Config, position: Position, samples: int, size: int) -> Position:
    """The position as `size` ranks count it: their global batch may be another, and then so are the steps of an epoch.

    The rows already taken stay taken; the learning rate follows the new count of steps, which ends with the epoch.
    """
    batch = config.global_batch(size)
    if batch == position.global_batch:
        return position
    log.info("the global batch was %d, and is %d from here on", position.global_batch, batch)
    left = sharding.steps_per_epoch(samples - position.rows_in_epoch, batch, config.remainder)
    steps = sharding.steps_per_epoch(samples, batch, config.remainder)
    step = (position.epoch + 1) * steps - left
    moved = dataclasses.replace(position, step=step, global_batch=batch)
    return moved if left else dataclasses.replace(moved, epoch=position.epoch + 1, rows_in_epoch=0)


def _restore_optimizer(config: Config, learner: Learner, saved: Checkpoint) -> None:
    state = saved.optimizer
    if saved.framework != config.framework:
        state = state._replace(extra={})
        log.info("weights and optimizer state come from %s", saved.framework)
    wanted = set(learner.optimizer_state().arrays)
    if wanted - set(state.arrays):
        log.warning("the checkpoint holds no such optimizer state (%s): it starts afresh", config.optimizer)
    else:
        learner.load_optimizer_state(state)


class Training:
    """One run of the loop, from a position to its end."""

    def __init__(
        self,
        config: Config,
        runtime: RuntimeOptions,
        learner: Learner,
        dataset: Dataset,
        folder: Path,
        position: Position,
        memory: ElasticMemory | None,
    ) -> None:
        self.folder, self._memory = folder, memory
        self._config, self._runtime, self._learner, self._data = config, runtime, learner, dataset
        self._group = learner.group
        self._position = position
        samples = len(dataset.train_images)
        self._steps = sharding.steps_per_epoch(samples, position.global_batch, config.remainder)
        if self._steps == 0:
            raise UserError(f"--batch-size {config.batch_size}: larger than the {samples} images; give less, or pad")
        self._last = min(config.epochs * self._steps, config.max_steps or config.epochs * self._steps)
        self._epoch_start = position
        self._meter = LossMeter(self._group)
        self._spikes = Spikes()
        self._speed = Speed(position.global_batch)
        self._accuracy = float("nan")
        self._writer: metrics.Writer | None = None
        self._stop, self._stop_rank = StopRequest(folder), -1
        self._watchdog = Watchdog(folder, self._group.rank, self._group.size, runtime.hang_timeout)

    @property
    def _leads(self) -> bool:
        return self._group.rank == 0

    @property
    def _epoch_ends(self) -> int:
        """The step after the last one of this epoch."""
        return (self._position.epoch + 1) * self._steps

    def _look_around(self) -> None:
        """Record what is to be said of this host, and warn of what is wrong with it."""
        from hvdtrain.doctor.examination import quick

        findings = quick()
        record.write_json(self.folder / "doctor.json", {"findings": findings})
        for one in findings:
            if one["status"] == "fail":
                log.warning("%s; %s", one["text"], one["remedy"])

    @contextlib.contextmanager
    def _stored(self, what: str) -> Iterator[None]:
        """Writes what must not be lost.

        Raises TrainingError where the disk does not take it, UserError where the run's folder is gone: to start again
        would be to begin anew.
        """
        try:
            yield
        except OSError as error:
            text, again = f"{what} cannot be written ({error.strerror or error})", f"go on with --resume {self.folder}"
            if not os.path.isdir(self.folder):
                raise UserError(f"{text}, as {self.folder} is gone: bring it back, and {again}") from None
            raise TrainingError(
                f"{text}; the checkpoints before it are whole: make room or mend the disk, and {again}"
            ) from None

    def run(self) -> None:
        """Train to the end, and write the record."""
        first = consistency.same_weights(self._learner, "before the first step")
        log.info("rank %d of %d starts with parameters %s", self._group.rank, self._group.size, first)
        if self._leads:
            with self._stored("the record of this run"):
                record.write_options(self.folder, self._config, self._runtime, self._learner)
                self._look_around()
                self._writer = metrics.Writer(self.folder, self._runtime.tensorboard)
        self._display = Display(self._last, self._position.step, self._leads and not self._runtime.quiet)
        try:
            with self._stop, self._watchdog:
                self._display.say(self._title())
                self._commit()
                scores = self._epochs()
        finally:
            self._display.close()
            if self._writer:
                self._writer.close()
        self._finish(scores)

    def _title(self) -> str:
        config, size, devices = self._config, self._group.size, self._learner.devices
        place = f"{devices} devices ({self._learner.device})" if devices > 1 else self._learner.device
        return (
            f"{config.model} on {config.data} in {config.framework}, {config.strategy}, {size} rank(s) on "
            f"{place}, global batch {self._position.global_batch}; record in {self.folder}"
        )

    def _epochs(self) -> Scores:
        scores = None
        while self._position.step < self._last:
            self._epoch()
            self._stop_if_asked()
            scores = self._evaluate()
            self._save(scores.accuracy)
            self._commit()
        return scores or self._evaluate()

    def _epoch(self) -> None:
        """Steps to the end of the epoch, or of training."""
        config = self._config
        self._epoch_start = start = self._position
        rows = sharding.order(config.seed, start.epoch, len(self._data.train_images))[start.rows_in_epoch :]
        parts = sharding.batches(rows, start.global_batch, config.remainder, self._group.rank, self._group.size)
        steps = min(self._epoch_ends, self._last) - start.step
        batches = self._batches(itertools.islice(parts, steps))
        self._speed.start(start.step)
        if isinstance(self._learner, FitLearner):
            self._learner.fit(batches, steps, self._after_step)
        else:
            for batch in batches:
                self._after_step(self._learner.train_step(*batch))
        self._look()
        if self._position.step == self._epoch_ends:
            self._position = dataclasses.replace(self._position, epoch=start.epoch + 1, rows_in_epoch=0)

    def _batches(self, parts: Iterator[sharding.Slice]) -> Iterator[Batch]:
        """This rank's rows of each step, from the present one on, made when they are asked for."""
        images, labels = self._data.train_images, self._data.train_labels
        for step, part in enumerate(parts, self._position.step):
            with self._speed.outside:
                lr = learning_rate(self._config, step, self._steps, self._group.size)
                batch = Batch(images[part.rows], labels[part.rows], part.weights, lr)
            yield batch

    def _after_step(self, loss: SupportsFloat) -> None:
        """Count a step; look, compare and save where it is time."""
        at, runtime = self._position, self._runtime
        with self._speed.outside:
            self._meter.add(at.step, loss)
            taken = min(at.rows_in_epoch + at.global_batch, len(self._data.train_images))
            self._position = at = dataclasses.replace(at, step=at.step + 1, rows_in_epoch=taken)
        self._watchdog.progress(at.step)
        if at.step == self._epoch_ends:
            return  # the epoch's end looks and saves
        if at.step % runtime.log_every == 0:
            self._look()
            self._stop_if_asked()
            self._commit()
        if runtime.check_sync and at.step % runtime.check_sync == 0:
            consistency.same_weights(self._learner, f"after step {at.step}")
        if runtime.checkpoint_every and at.step % runtime.checkpoint_every == 0:
            self._look()
            self._save(0.0)

    def _look(self) -> None:
        """Join the ranks' losses; a loss that is not finite ends the job, or is told."""
        interval = self._meter.join(bool(self._stop.reason()))
        self._stop_rank = interval.stop_rank
        if interval.bad_rank >= 0:
            rows = self._rows(interval.bad_rank, interval.bad_step)
            text = (
                f"rank {interval.bad_rank}: loss is not finite at step {interval.bad_step}, in training images {rows}"
            )
            if self._config.on_nan == "stop":
                raise TrainingError(f"{text}; lower --lr, look at the data, or give --on-nan skip")
            log.warning("%s; %d step(s) skipped so far", text, self._learner.skipped)
        step = self._position.step
        weights = self._learner.weights()  # waits for the last update
        with self._speed.outside:
            consistency.finite(weights, step)
        speed = self._speed.at(step)
        if speed:  # else nothing happened since the last look
            with self._speed.outside:
                self._show(interval.loss, speed)

    def _rows(self, rank: int, step: int) -> str:
        """Numbers of the training images that a rank had in a step of this epoch."""
        start, config = self._epoch_start, self._config
        order = sharding.order(config.seed, start.epoch, len(self._data.train_images))
        first = start.rows_in_epoch + (step - start.step) * start.global_batch
        batch = order[first : first + start.global_batch]
        shape = start.global_batch if config.remainder == "pad" else len(batch)
        part = sharding.part_of(batch, shape, rank, self._group.size)
        numbers = sorted(part.rows[part.weights > 0])
        more = f" and {len(numbers) - ROWS_TOLD} more" if len(numbers) > ROWS_TOLD else ""
        return f"{', '.join(map(str, numbers[:ROWS_TOLD]))}{more}"

    def _show(self, loss: float, speed: dict[str, float]) -> None:
        """Write and show what the interval brought."""
        step = self._position.step
        if self._writer:
            lr = learning_rate(self._config, max(step - 1, 0), self._steps, self._group.size)
            values = {"loss": loss, "lr": lr, **speed, "skipped": self._learner.skipped}
            self._writer.write("train", step, epoch=step / self._steps, **values)
        usual = self._spikes.usual(loss)
        if usual is not None:
            log.warning("the loss jumped to %.4g before step %d; its median was %.4g", loss, step, usual)
        text = f"{speed['images_per_s']:,.0f} images/s  loss {loss:.4f}  accuracy {self._accuracy:.4f}"
        self._display.update(step, self._position.epoch + 1, text)

    def _stop_if_asked(self) -> None:
        """Where a rank was asked to stop: write a checkpoint, and end all ranks."""
        if self._stop_rank < 0:
            return
        self._stop.agreed()
        self._save(0.0)
        reason = self._group.gather(self._stop.reason())[self._stop_rank]
        if self._leads:
            self._stop.forget()
        raise Stopped(
            f"rank {self._stop_rank} was asked to stop by {reason}; the checkpoint of step {self._position.step} is "
            f"written: go on with --resume {self.folder}"
        )

    def _evaluate(self) -> Scores:
        """Loss, accuracy and confusion over the test set, each image on exactly one rank."""
        classes, began = len(self._data.classes), time.perf_counter()
        confusion, total = np.zeros((classes, classes)), 0.0
        images, labels = self._data.test_images, self._data.test_labels
        for rows in sharding.evaluation(len(images), EVALUATION_BATCH, self._group.rank, self._group.size):
            loss, predicted = self._learner.eval_step(images[rows], labels[rows])
            total += loss
            self._watchdog.progress(self._position.step)
            np.add.at(confusion, (labels[rows], predicted), 1)
        self._name_the_slow(time.perf_counter() - began)
        scores = metrics.join_scores(self._group, total, confusion)
        self._accuracy = scores.accuracy
        step, epoch = self._position.step, self._position.step / self._steps
        if self._writer:
            self._writer.write("test", step, epoch=epoch, loss=scores.loss, accuracy=scores.accuracy)
        self._display.say(f"epoch {epoch:g}: test loss {scores.loss:.4f}, accuracy {scores.accuracy:.4f}")
        return scores

    def _name_the_slow(self, seconds: float) -> None:
        """Warn of ranks that took much longer for their part of the evaluation: in training all others wait for them.

        In a step every rank takes as long as the slowest; only here each one works without waiting.
        """
        told = self._group.gather((rank_info.host_name(), seconds))
        by_rank = [one for _, one in told]
        if self._writer:
            self._writer.write("ranks", self._position.step, evaluation_s=by_rank)
        for rank in metrics.slow_ranks(by_rank):
            log.warning(
                "rank %d on %s is slow: %.2f s for its part of the evaluation, where the median rank took %.2f s; in "
                "training the others wait for it: look at that host by python -m hvdtrain doctor",
                *(rank, told[rank][0], by_rank[rank], np.median(by_rank)),
            )

    def _save(self, score: float) -> None:
        """A checkpoint, written by rank 0."""
        weights = self._learner.weights()
        consistency.finite(weights, self._position.step)
        if not self._leads:
            return
        with self._stored(f"the checkpoint of step {self._position.step}"):
            checkpoints.save(self.folder / "checkpoints", self._state(weights, score), self._runtime.keep)

    def _commit(self) -> None:
        """In an elastic job: remember where all ranks are, and see whether hosts came or went."""
        if self._memory:
            self._memory.commit(self._group, self.folder, self._state(self._learner.weights(), 0.0))

    def _state(self, weights: Weights, score: float) -> Checkpoint:
        return Checkpoint(
            weights=weights,
            optimizer=self._learner.optimizer_state(),
            position=self._position,
            model=self._config.model,
            framework=self._config.framework,
            optimizer_name=self._config.optimizer,
            data=self._data.fingerprint,
            score=score,
            classes=self._data.classes,
        )

    def _finish(self, scores: Scores) -> None:
        """Compare the ranks a last time, and write what came out."""
        parameters = consistency.same_weights(self._learner, "after the last step")
        log.info("rank %d ends with parameters %s", self._group.rank, parameters)
        peaks_kb = self._group.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        epoch_s = max(self._group.gather(self._speed.seconds_a_step)) * self._steps
        shares = self._shares()
        if not self._leads:
            return
        per_class = dict(zip(self._data.classes, scores.per_class(), strict=True))
        result: dict[str, Any] = {
            "accuracy": scores.accuracy,
            "loss": scores.loss,
            "steps": self._position.step,
            "parameters": parameters,
            "images_per_s": self._speed.median,
            "epoch_s": epoch_s,
            "global_batch": self._position.global_batch,
            "outside_share": self._speed.outside_share,
            "shares": shares,
            "peak_rss_mb": max(peaks_kb) / 1024,
            "skipped": self._learner.skipped,
            "per_class_accuracy": per_class,
            "confusion": scores.confusion.tolist(),
        }
        with self._stored("the result"):
            record.write_json(self.folder / "result.json", result)
            metrics.plot(self.folder, f"{self._config.model} on {self._config.data} in {self._config.framework}")
        worst = min(per_class, key=lambda name: np.nan_to_num(per_class[name], nan=2.0))
        self._display.say(
            f"test accuracy {scores.accuracy:.4f} (worst class {worst}: {per_class[worst]:.3f}), "
            f"{self._speed.median:,.0f} images/s, parameters {parameters}, record in {self.folder}"
        )

    def _shares(self) -> dict[str, float] | None:
        """Parts of a step: computing, waiting for data and for the loop, and communicating, which is what remains.

        Computing is timed apart: every rank at the same time trains the same network alone, on as many rows as one
        device gets. What a strategy hides behind computing thus counts as computing. None unless asked for.
        """
        if not self._runtime.profile:
            return None
        group = self._group
        rows = max(self._position.global_batch // (group.size * self._learner.devices), 1)
        config = dataclasses.replace(self._config, strategy="single", api="auto", kvstore="device", op="average",
                                     compression="none")  # fmt: skip
        alone = build_learner(config, self._learner.weights(), dataclasses.replace(self._runtime, devices=0), group)
        images, labels = self._data.train_images[:rows], self._data.train_labels[:rows]
        batch = Batch(images, labels, np.full(len(images), 1 / len(images), np.float32), 0.0)
        times = []
        for _ in range(1 + self._runtime.profile):
            group.sum(np.zeros(1))  # all start together, and disturb each other as in training
            began = time.perf_counter()
            alone.train_step(*batch)
            alone.weights()  # waits for the update; the loss alone would not
            times.append(time.perf_counter() - began)
        step_s, compute_s, data = self._speed.seconds_a_step, float(np.median(times[1:])), self._speed.outside_share
        computing = min(compute_s / step_s, 1 - data)
        joined = group.sum(np.array([computing, data, 1])) / group.size
        return {"compute": joined[0], "communicate": max(1 - joined[0] - joined[1], 0.0), "data": joined[1]}
