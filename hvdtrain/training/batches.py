"""This rank's rows of each step: their order, reading ahead, rows that cannot be read, and rows kept on the device."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from hvdtrain.collectives import audits
from hvdtrain.datasets import sharding
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.rows import RowError, Rows
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.reading import Audit, Batch, Part
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log_to_file
from hvdtrain.system.phases import DATA, LOOP, phases
from hvdtrain.tasks.progress import Progress, place
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import restoring

NO_WEIGHTS, NO_ROWS = np.empty(0, np.float32), np.empty(0, np.int64)
"""Of a step in shards, which have them."""
MAX_ROWS = 8
"""Rows that an error message lists."""
USUAL = 0.01
"""The size of common weights."""


class Batches:
    """This rank's share of each global batch. reader: of the run's data."""

    def __init__(self, run: RunContext, reader: Reader) -> None:
        self._run = run
        self.reader, self.bad_rows = reader, BadRows()
        self.rows = 0
        """Number of rows that this rank has trained on."""

    def prepare(self) -> None:
        """Before the first step: wait until all processes can read the rows."""
        rows = self._run.dataset.train.unaugmented
        rows.kept = max(rows.kept, self._run.global_batch)
        self.reader.wait_until_loaded()

    def of_epoch(self, at: Position, steps: int) -> Iterator[Batch]:
        """The batches of so many steps of an epoch, from `at` on; workers read them ahead.

        When this rank's shards change, the next batch has the new ones.
        """
        run = self._run
        self._start, self._order = at, run.weighting.order(at.epoch)[at.rows_in_epoch :]
        if run.in_shards and run.target.kind == "script":
            self._check_last_batch(len(self._order) % run.global_batch)
        return self._batches(at, at.step + steps)

    def _check_last_batch(self, rows: int) -> None:
        """Raise UserError if a script's loop would have no turn in a step on a rank whose shards have no rows.

        rows: of an incomplete last batch, 0 for none.
        """
        shards = self._run.parts
        if 0 < rows < shards and self._run.remainder != "drop":
            raise UserError(
                f"--shards {shards}: the last batch of the epoch has {rows} row(s), and a loop needs one in each shard",
                "use --remainder drop, or another --batch-size",
                option="shards",
            )

    def _batches(self, at: Position, end: int) -> Iterator[Batch]:
        """The batches of the steps from `at` to `end` - 1."""
        run, step = self._run, at.step
        while step < end:
            assignment = run.assignment
            batches = self._of_steps(at.epoch, range(step, end), assignment.by_rank[run.group.rank])
            with contextlib.closing(batches):  # ends reading ahead
                for batch in batches:
                    yield batch
                    step += 1
                    if run.assignment is not assignment:
                        break

    def _of_steps(self, epoch: int, numbers: Sequence[int], of_rank: Sequence[int]) -> Generator[Batch, None, None]:
        """The batches of the steps with these numbers. of_rank: the parts that this rank computes."""
        steps, ahead = itertools.tee(self._parts(step, of_rank) for step in numbers)
        rows_of_parts = self.reader.batches("train", (part.rows for parts in ahead for part in parts.values()), epoch)
        for step, parts in zip(numbers, steps, strict=True):
            phases.begin(DATA)
            read = [next(rows_of_parts) for _ in parts]
            phases.begin(LOOP)
            batch = self._step(step, parts, read)
            phases.begin(phases.between)
            place.now = Progress(step, epoch, training=True)
            yield batch

    def _parts(self, step: int, numbers: Sequence[int]) -> dict[int, sharding.Slice]:
        """The rows of those of these parts of a step that have some, and of the one that this rank checks, by number.

        Without --shards, a part without rows is padding, and a rank takes each step.
        """
        run, audit = self._run, self.audit(step)
        if audit and audit.by == run.group.rank:
            numbers = (*numbers, audit.shard)
        if run.in_shards:
            with_rows = self._with_rows(step)
            numbers = [number for number in numbers if number in with_rows]
        return dict(zip(numbers, self._slices(step, numbers), strict=True))

    def _slices(self, step: int, numbers: Sequence[int]) -> list[sharding.Slice]:
        """Parts of a step of this epoch. numbers: ranks, or with --shards shards."""
        run = self._run
        cut = sharding.Cut(run.parts, tuple(numbers))
        order, number = self._order, step - self._start.step
        if number < 0:  # of before this rank has joined, or begun again
            whole = run.weighting.order(self._start.epoch)
            order, number = whole[max(self._start.rows_in_epoch + number * run.global_batch, 0) :], 0
        weights = run.weighting.of_training
        return sharding.slices_of_step(order, number, run.global_batch, run.remainder, cut, weights)

    def _with_rows(self, step: int) -> tuple[int, ...]:
        """The shards of a step that have rows."""
        run = self._run
        rows = len(self._order) - (step - self._start.step) * run.global_batch
        return sharding.parts_with_rows(rows, run.global_batch, run.remainder, run.parts)

    def audit(self, step: int) -> Audit | None:
        """The shard of a step that two ranks compute (`--audit`)."""
        run, every = self._run, self._run.runtime.audit
        if not every or (step + 1) % every:
            return None
        return audits.choose(run.config.seed, step, run.assignment.by_rank, self._with_rows(step))

    def _step(self, step: int, parts: dict[int, sharding.Slice], read: list[Rows]) -> Batch:
        """This rank's batch of a step, from the rows of its parts."""
        run, lr, audit = self._run, self._run.learning_rate(step), self.audit(step)
        witnessed = audit.shard if audit and audit.by == run.group.rank else None
        batches = [
            self._batch(part, rows, lr, step, number, number == witnessed)
            for (number, part), rows in zip(parts.items(), read, strict=True)
        ]
        if not run.in_shards:
            return batches[0]
        nothing = (), NO_WEIGHTS, lr, step, NO_ROWS
        with_rows = frozenset(self._with_rows(step))
        by_rank = tuple(tuple(filter(with_rows.__contains__, numbers)) for numbers in run.assignment.by_rank)
        return Batch(*nothing, shards=tuple(batches), by_rank=by_rank, audit=audit)

    def _batch(self, part: sharding.Slice, rows: Rows, lr: float, step: int, number: int, is_witness: bool) -> Batch:
        if rows.bad:
            part.weights[list(rows.bad)] = 0
            self.bad_rows.add("train", part.rows, rows.bad)
        if not is_witness:
            self.rows += int(np.count_nonzero(part.weights))
        return Batch(rows.arrays, part.weights, lr, step, part.rows, number, is_witness=is_witness)

    def only(self, step: int, epoch: int, audit: Audit) -> Batch:
        """A step of this epoch that only computes the audited shard, on every rank."""
        (part,) = self._slices(step, [audit.shard])
        rows = next(iter(self.reader.batches("train", [part.rows], epoch)))
        lr = self._run.learning_rate(step)
        place.now = Progress(step, epoch, training=True)
        shard = self._batch(part, rows, lr, step, audit.shard, is_witness=True)
        return Batch((), NO_WEIGHTS, lr, step, NO_ROWS, shards=(shard,), audit=audit._replace(only=True))

    def describe_rows(self, part: int, step: int) -> str:
        """Numbers of the training rows of a part of a step of this epoch whose losses are not finite, for a message.

        part: a rank, or a shard.
        """
        (part_rows,) = self._slices(step, [part])
        rows = self._not_finite(np.sort(part_rows.rows[part_rows.weights > 0]))
        more = f" and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
        return f"{', '.join(map(str, rows[:MAX_ROWS]))}{more}"

    def _not_finite(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows of which an evaluation has no finite loss; all, where it does not tell.

        Weights that are no longer finite get a value of about the size that weights have: NaN in a row stays NaN.
        """
        run, length, found = self._run, self._run.rows_of_pass, [rows[:0]]
        count = 0 if run.dataset.train.is_stream else len(rows)
        pieces = [rows[first : first + length] for first in range(0, count, length)]
        with contextlib.suppress(Exception), restoring(run.learner) as weights:  # of a user's code
            usual = {name: np.where(np.isfinite(array), array, USUAL) for name, array in weights.items()}
            usual |= {name: weights[name] for name in run.not_finite_at_first}
            place.now = place.now._replace(training=False)
            run.learner.load({name: array.astype(weights[name].dtype) for name, array in usual.items()})
            for piece, read in zip(pieces, self.reader.batches("train", pieces, self._start.epoch), strict=True):
                losses = run.learner.evaluate(read.arrays).losses
                found.append(piece[~np.isfinite(losses())] if losses else piece)
        named = np.concatenate(found)
        return named if len(named) else rows


class BadRows:
    """This rank's bad rows since training started.

    The rule: a bad row has weight 0, and the other rows of the global batch keep their weights. So a step's gradient is
    the mean over the global batch with the bad row's loss as 0, on any number of ranks and without communication.
    """

    def __init__(self) -> None:
        self._known: dict[Part, set[int]] = {"train": set(), "validation": set(), "test": set()}

    def add(self, part: Part, rows: np.ndarray, bad: Mapping[int, RowError]) -> None:
        """Bad rows of a batch, by position in `rows`, the batch's row numbers; the log names those that are new."""
        for position, error in bad.items():
            row = int(rows[position])
            if row not in self._known[part]:
                self._known[part].add(row)
                log_to_file(logging.WARNING, f"skipped a row of {part}: {error.reason}")

    def count(self, group: Group) -> dict[Part, int]:
        """Number of different bad rows of all ranks, by part; call it on every rank."""
        gathered = group.gather([sorted(rows) for rows in self._known.values()])
        return {
            part: len(set().union(*(of_rank[number] for of_rank in gathered)))
            for number, part in enumerate(self._known)
        }
