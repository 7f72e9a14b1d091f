"""One run: options, learner, data and folder, and the numbers that follow from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.config import rules
from hvdtrain.config.forms import Schedule
from hvdtrain.config.option import key
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.score import Score
from hvdtrain.config.sources import FACTS, to_record
from hvdtrain.datasets import sharding
from hvdtrain.datasets.weights import Weighting
from hvdtrain.interfaces.learner import AVERAGE, Checkpoint, Learner, Position
from hvdtrain.interfaces.reading import Dataset
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights
from hvdtrain.runs import record
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import RunLock
from hvdtrain.tasks.target import Target
from hvdtrain.training import consistency
from hvdtrain.training.local_steps import LocalSteps, SyncPoints

ONE_CYCLE_START, ONE_CYCLE_END = 25.0, 1e4
"""By what the one-cycle schedule divides the peak for its first rate, and that for its last one: PyTorch's defaults."""


Findings = list[dict[str, Any]]
"""What the doctor's checks found on this host: `status`, `text`, `remedy` and more of each."""


@dataclass(eq=False)
class RunContext:
    """Options, learner, data and folder of a run, which stay while it trains; and who computes which shards."""

    config: Config
    runtime: RuntimeOptions
    target: Target
    learner: Learner
    dataset: Dataset
    examine_host: Callable[[], Findings] = list
    """See `train`."""
    folder: Path = Path()
    """Set where the run begins."""
    lock: RunLock = field(default_factory=RunLock)
    """The lock of the folder, which rank 0 holds."""
    parent: str = ""
    """The checkpoint of another run that it began with."""
    not_finite_at_first: dict[str, np.ndarray] = field(default_factory=dict)
    """Where this rank's weights were not finite before the first step, from `consistency.not_finite`."""
    _assigned: sharding.Assignment | None = None
    """The assignment since shards moved; None for the one that a job begins with."""
    _identical_after: int | None = None
    """The last step after which the ranks had the same weights, as far as they were compared."""

    def check_data(self) -> None:
        """Raise UserError if the data has fewer images than one step needs, or a step fewer rows than --accumulate."""
        config, samples = self.config, self.samples
        batch = config.global_batch(self.group.size)
        rules.check(
            config,
            self.runtime,
            unit=self.target.unit,
            samples=samples,
            full_batches=samples // batch if config.remainder == "drop" else samples,
            step_rows=min(batch, samples),
            device_rows=-(-min(batch, samples) // config.parts(self.group.size) // self.learner.devices),
            evaluated=len(self.dataset.parts[self.dataset.evaluated]),
        )
        self.weighting.check_steps(-(-self.last_step // self.steps_per_epoch), self.global_batch, self.steps_per_epoch)

    @functools.cached_property
    def weighting(self) -> Weighting:
        return Weighting(self.config, self.dataset, self.target.labels_at)

    @property
    def group(self) -> Group:
        return self.learner.group

    @property
    def recorded_options(self) -> dict[str, Any]:
        """The options that decide the results, as JSON values."""
        ignored = self.target.ignored_options
        return {name: value for name, value in to_record(self.config).items() if name not in ignored}

    @property
    def shared_values(self) -> dict[str, Any]:
        """What must be the same on all ranks, as JSON values by names for messages."""
        recorded = {**to_record(self.config), **to_record(self.runtime)}
        options = {f"--{key(name)}": value for name, value in recorded.items() if not FACTS[name].per_rank}
        layers = consistency.digest(self.target.record())
        shared = {**options, "layers": layers, "data": self.dataset.fingerprint}
        shared["weights"] = self.weighting.digest
        shared |= {f"the framework's {name}": value for name, value in self.learner.global_settings.items()}
        if names := self.learner.optimizer_order:
            shared[consistency.ORDER] = f"{', '.join(names[:3])}, ... ({consistency.digest(names)})"
        return shared

    @property
    def is_rank_0(self) -> bool:
        """Whether this rank writes the run's folder and the console."""
        return self.group.rank == 0

    @functools.cached_property
    def samples(self) -> int:
        return len(self.dataset.train)

    @property
    def in_shards(self) -> bool:
        """Whether the parts of a global batch are shards, and not the ranks' rows."""
        return self.config.shards > 0

    @property
    def parts(self) -> int:
        return self.config.parts(self.group.size)

    @functools.cached_property
    def global_batch(self) -> int:
        """Rows of one step over all ranks: all images if --batch-size is larger."""
        return min(self.config.global_batch(self.group.size), self.samples)

    @property
    def rows_of_pass(self) -> int:
        """Rows of a forward pass in training, at most: of a rank or shard, on a device, in a part of --accumulate."""
        return -(-self.global_batch // self.parts // self.learner.devices // self.config.accumulate)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        return sharding.steps_per_epoch(self.samples, self.config.global_batch(self.group.size), self.config.remainder)

    @functools.cached_property
    def remainder(self) -> sharding.Remainder:
        """How incomplete batches are cut: padding would count in the statistics of batch normalization."""
        return "exact" if self.target.needs_exact_batches and self.config.remainder == "pad" else self.config.remainder

    @property
    def assignment(self) -> sharding.Assignment:
        """Which parts of a global batch each rank computes now; the same on every rank."""
        if self._assigned and len(self._assigned.by_rank) == self.group.size:
            return self._assigned
        return sharding.Assignment.contiguous(self.group.size, self.config.shards)

    def assign(self, assignment: sharding.Assignment | None) -> None:
        """Change who computes which shards, from the next step on; call it on every rank at the same step.

        assignment: None for the one that a job of so many ranks begins with.
        """
        self._assigned = assignment

    @functools.cached_property
    def last_step(self) -> int:
        return last_step(self.config, self.samples, self.group.size)

    @functools.cached_property
    def local_steps(self) -> LocalSteps | None:
        return LocalSteps(self.learner) if self.config.sync_every > 1 else None

    @functools.cached_property
    def sync_points(self) -> SyncPoints:
        """The steps after which all ranks have the same weights: each one without --sync-every."""
        return SyncPoints(self.config.sync_every, self.steps_per_epoch, self.last_step)

    def is_over(self, at: Position) -> bool:
        """Whether no step follows: the last one is done, or the score has not become better for --patience epochs."""
        return at.step >= self.last_step or at.has_waited(self.config.patience, self.config.score_choice)

    def options_without_effect(self) -> Iterator[str]:
        """What to say of options that were given and change nothing."""
        asked = self.config.global_batch(self.group.size)
        steps = {"samples": self.samples, "asked_rows": asked, "all_steps": self.config.epochs * self.steps_per_epoch}
        yield from rules.without_effect(self.config, self.runtime, unit=self.target.unit, **steps, **self.target.facts)

    @property
    def schedule_problem(self) -> str:
        """Why the run never trains at the peak of its learning rate, and what to do; empty where it does."""
        config, last = self.config, self.last_step
        warmup = rise_steps(config, self.steps_per_epoch)
        if self.learner.learning_rate is not None or last >= warmup:
            return ""
        reached, peak = (self.learning_rate(step) for step in (last - 1, warmup - 1))
        shorter = f"give --warmup-epochs {last / self.steps_per_epoch / 10:.1g}"
        remedy = "give fewer --epochs" if Schedule.parse(config.schedule).kind == "onecycle" else shorter
        return (
            f"the run ends after {last} steps, in its warm-up of {warmup}: the learning rate reaches {reached:.3g} of "
            f"{peak:.3g}; {remedy}, or more steps (--max-steps shortens neither warm-up nor schedule)"
        )

    @functools.cached_property
    def arithmetic(self) -> dict[str, Any]:
        """What decides the bits on this rank besides options and data, as JSON values."""
        return consistency.arithmetic_record(self.config, self.learner)

    def write_record(self) -> dict[str, Any]:
        """Write what is known before the first step; the content of `config.json`."""
        content = {
            "parent": self.parent,
            "config": self.recorded_options,
            "network": self.target.record(),
            "data": self.dataset.fingerprint[: record.FINGERPRINT_DIGITS],
            "steps": self.last_step,
            "framework_settings": dict(self.learner.global_settings),
            "arithmetic": {name: bit for name, bit in self.arithmetic.items() if name not in consistency.ELSEWHERE},
        }
        written = record.write_options(self.folder, self.runtime, self.learner, content)
        findings = self.examine_host()
        record.write_json(self.folder / "doctor.json", {"findings": findings})
        for finding in findings:
            if finding["status"] == "fail":
                log.warning("%s; %s", finding["text"], finding["remedy"])
        return written

    def check_same_weights(self, step: int, when: str = "", weights: Weights | None = None) -> str:
        """The checksum, after so many steps, of the weights that must be identical on all ranks; call it on every rank.

        With --batch-norm local each rank has statistics of its own rows. Rank 0's count: checkpoints have them, and
        `share_arrays` gives them to all ranks before an evaluation.
        when: for the message. weights: those of the learner. Raises TrainingError where ranks differ.
        """
        weights = self.learner.weights() if weights is None else weights  # waits for the last update
        common = {name: value for name, value in weights.items() if name not in self.learner.local_weights}
        when = when or f"after step {step}"
        parameters = consistency.check_same_weights(
            self.group, common, when, self._identical_after, consistency.settings(self.learner)
        )
        self._identical_after = step
        return parameters

    def learning_rate(self, step: int) -> float:
        """Learning rate of the step with this number, counted from 0; in a script's own loop, its present one."""
        lr = self.learner.learning_rate
        return learning_rate(self.config, step, self.steps_per_epoch, self.group.size) if lr is None else lr

    def checkpoint(self, position: Position, weights: Weights, score: Score | None = None) -> Checkpoint:
        """The state of training at `position`, with this rank's optimizer state only.

        score: None if it was not measured there.
        """
        optimizer = self.learner.optimizer_state()
        others = {f"{AVERAGE}{name}": array for name, array in self.learner.averages().items()}
        others |= self.learner.mean_arrays()
        return Checkpoint(
            weights=weights,
            optimizer=optimizer._replace(arrays=optimizer.arrays | others),
            position=position,
            model=self.config.model,
            network=self.target.record(),
            framework=self.config.framework,
            optimizer_name=self.recorded_options.get("optimizer", ""),  # of a user's code, empty
            data=self.dataset.fingerprint,
            score=score.order if score else (),
            score_choice=score.choice if score else "",
            classes=self.dataset.classes,
            init=self.config.init,
            arithmetic=self.arithmetic if self.in_shards else {},
        )


def last_step(config: Config, samples: int, size: int) -> int:
    """Number of steps of a run on so many training images, with `size` ranks."""
    steps = config.epochs * sharding.steps_per_epoch(samples, config.global_batch(size), config.remainder)
    return min(steps, config.max_steps or steps)


def rise_steps(config: Config, steps_per_epoch: int) -> int:
    """Number of steps in which the learning rate rises, to its peak in the last of them."""
    schedule = Schedule.parse(config.schedule)
    if schedule.kind == "onecycle":
        return max(math.ceil(schedule.share * config.epochs * steps_per_epoch), 1)
    return round(config.warmup_epochs * steps_per_epoch)


def learning_rate(config: Config, step: int, steps_per_epoch: int, size: int = 1) -> float:
    """Learning rate of the step with this number, counted from 0 over all epochs, on `size` ranks.

    A linear warm-up over `warmup_epochs` reaches the peak. Then `constant`; `step` (times `factor` every
    `epochs` of it); `cosine` (half a cosine down to 0 after the last step; Loshchilov and Hutter, 2017); or
    `polynomial` (times (1 - t) ** `power`, where t is the share of the steps after the warm-up). `onecycle` has no
    warm-up: see `_one_cycle`.
    With `--batch-scope per-rank` the peak is `lr * size`: the linear scaling rule (Goyal et al., 2017).
    The length is that of all epochs, so that --max-steps and --resume make parts of the same run.
    """
    schedule, peak = Schedule.parse(config.schedule), config.lr * (size if config.batch_scope == "per-rank" else 1)
    if schedule.kind == "onecycle":
        return peak * _one_cycle(step, config.epochs * steps_per_epoch, schedule.share)
    warmup = rise_steps(config, steps_per_epoch)
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule.kind == "step":
        return peak * schedule.factor ** (step // (schedule.epochs * steps_per_epoch))
    done, total = step - warmup, max(config.epochs * steps_per_epoch - warmup, 1)
    if schedule.kind == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done / total))
    if schedule.kind == "polynomial":
        return peak * max(1 - done / total, 0.0) ** schedule.power
    return peak


def _one_cycle(step: int, steps: int, share: float) -> float:
    """The learning rate of a step as a share of the peak, as PyTorch's OneCycleLR has it by default.

    Half a cosine up from 1/25 to 1 in this share of the steps, and half a cosine down to 1/250000 at the last one:
    Smith and Topin (2018), whose momentum falls and rises meanwhile; here it stays.
    """
    top, last = max(share * steps - 1, 0.0), steps - 1
    if step <= top:
        return _between(1 / ONE_CYCLE_START, 1.0, step / top if top else 1.0)
    return _between(1.0, 1 / ONE_CYCLE_START / ONE_CYCLE_END, min((step - top) / (last - top), 1.0))


def _between(first: float, last: float, share: float) -> float:
    """A value on half a cosine from `first` to `last`."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))
