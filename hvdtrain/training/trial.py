"""Before a run begins: what training and evaluations will do with a user's model is done once, on its first rows."""

from __future__ import annotations

import contextlib

import numpy as np

from hvdtrain.config.score import AUTO, check_measured
from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.frameworks.row_checks import BY_SCRIPT, BY_TASK, ROUNDING, changes_by_rows, mixed_rows
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.reading import Batch
from hvdtrain.tasks.target import TRIED_ROWS
from hvdtrain.training.consistency import checksum
from hvdtrain.training.evaluation import eval_pieces, metric_names
from hvdtrain.training.run import RunContext


def try_out(run: RunContext) -> None:
    """Learn how the model is evaluated. Raises UserError if it fails, or does not take all numbers of rows."""
    config, target = run.config, run.target
    if target.is_portable:
        if run.config.score != AUTO:
            _try_evaluation(run)
        return
    whole, last = _lengths(run, run.global_batch), set[int]()
    if config.remainder != "drop" and run.last_step >= run.steps_per_epoch:
        last = _lengths(run, run.samples % run.global_batch)
    with run.learner.unchanged(is_trial=True):
        is_other = target.needed_rows or min(whole) < TRIED_ROWS * config.accumulate * run.learner.devices
        for rows in sorted(last | whole if is_other else last - whole):
            _try_step(run, rows, "use another --batch-size" if rows in whole else "use --remainder drop")
    _try_evaluation(run)
    if run.in_shards or run.group.size * run.learner.devices > 1:
        find_own_changes(run, max(whole))


def _try_evaluation(run: RunContext) -> None:
    """Learn how the model, with its weights as they are, is evaluated. Raises UserError for a --score of nothing.

    It takes the most rows that a step of an evaluation has, as what does not fit into memory is to fail now, and the
    fewest.
    """
    target, learner, part = run.target, run.learner, run.dataset.evaluated
    lengths = {len(piece) for rank in range(run.group.size) for piece in eval_pieces(run, part, rank)}
    if not lengths:
        return
    with learner.unchanged(is_trial=True):
        before = checksum(learner.weights())
        for rows in dict.fromkeys((max(lengths), min(lengths))):
            arrays = target.tried_rows(run.dataset, part, rows)
            evaluated = target.guard(f"an evaluation of {rows} row(s)", learner.choose_eval_mode, arrays)
        learner.changes_in_evaluation = checksum(learner.weights()) != before
        if not (target.mixes_rows or target.is_portable):
            _check_rows(run, target.tried_rows(run.dataset, part, 2))
    check_measured(run.config.score, metric_names(run, evaluated))


def _check_rows(run: RunContext, two: tuple[np.ndarray, ...]) -> None:
    """Raise UserError if what an evaluation finds for a row depends on other rows, or on their number. two: rows.

    Sums over four rows, in batches of one size, have the same rounding. What differs without a reason is random.
    """
    learner, names, mixed = run.learner, list[str](), list[str]()

    def sums(*rows: int) -> np.ndarray:
        evaluated = learner.try_evaluation(tuple(array[[*rows]] for array in two))
        names[:] = names or evaluated.metrics  # of which other rows may have none, or others
        return np.array([evaluated.loss, *(evaluated.metrics.get(name, np.nan) for name in names)])

    with contextlib.suppress(Exception), np.errstate(invalid="ignore"):  # of a model that does not take four rows
        both, again, first, second = (sums(*rows) for rows in ((0, 0, 1, 1), (0, 0, 1, 1), [0] * 4, [1] * 4))
        differs = abs(2 * both - first - second) > ROUNDING * (abs(first) + abs(second)) + ROUNDING**2
        with contextlib.suppress(Exception):  # or not one
            alone = 4 * sums(0)
            differs |= abs(first - alone) > (abs(first) + abs(alone)) / 4
        if differs.any() and np.array_equal(both, again, equal_nan=True):
            mixed.append(["the loss", *(f"the metric {name}" for name in names)][int(differs.argmax())])
    if mixed:
        permission = BY_SCRIPT if run.target.kind == "script" else BY_TASK
        raise mixed_rows(_where(run), f"in an evaluation, {mixed[0]}", permission)


def find_own_changes(run: RunContext, rows: int) -> None:
    """Let the learner know the weights that forward passes change, by a step with so many rows of a rank or shard.

    Raises UserError if the change depends on rows or random numbers: each rank or shard would train another network.
    """
    by_rows, tried = run.learner.limits_rows, run.target.tried_rows(run.dataset, "train", rows)
    if not by_rows and (changed := _own_changes(run, tried, 0)):
        others = _own_changes(run, tuple(np.repeat(array[-1:], rows, 0) for array in tried), 1)
        by_rows = min((name for name, _ in changed.items() ^ others.items()), default="")
        run.learner.changes_in_evaluation = True  # it may, although it has not changed the first weights
        if run.in_shards:
            run.learner.keep_in_shards(sorted(changed))
    if by_rows:
        raise changes_by_rows(_where(run), by_rows)


def _where(run: RunContext) -> str:
    return f"--model {run.config.model}" if run.target.kind == "task" else "setup()"


def _own_changes(run: RunContext, arrays: tuple[np.ndarray, ...], part: int) -> dict[str, str]:
    """The weights that the forward pass of a step changes, with checksums of their new values.

    It begins with other weights, each moved a little in its own way: they may have a norm already, or be equal, unless
    the model fails with these.
    """
    learner = run.learner
    for scale in (0.01, 0.0):
        with contextlib.suppress(UserError) if scale else contextlib.nullcontext(), learner.unchanged(is_trial=True):
            weights = learner.weights()
            for place, name in enumerate(sorted(weights)):
                if weights[name].dtype.kind in "fc" and name not in learner.untrained:
                    move = scale * (1 + place / len(weights))
                    weights[name] = np.asarray(weights[name] * (1 + move) + move / 10, weights[name].dtype)
            learner.load(weights)
            weights.clear()
            before = _described(learner)
            learner.seed(0, part)
            run.target.guard("a step", learner.try_step, _batch(arrays, part))
            changed = dict(_described(learner).items() - before.items())
            resized = changed.keys() & learner.untrained
            if resized and run.in_shards:
                problem = f"--shards: the model makes or resizes {min(resized)} in a step, which depends on the shard"
                raise UserError(problem, "give it its shape before the first step, or leave out --shards")
            return {name: changed[name] for name in changed.keys() - resized}
    return {}


def _described(learner: Learner) -> dict[str, str]:
    """The checksum of each weight that is trained, and the shapes of others."""
    weights, others = learner.weights(), learner.untrained
    return {name: str(weights[name].shape) if name in others else checksum({name: weights[name]}) for name in weights}


def _lengths(run: RunContext, rows: int) -> set[int]:
    """The numbers of rows of a rank or shard, in a step of so many rows."""
    cut = sharding.Cut(run.parts, tuple(range(run.parts if rows else 0)))
    slices = sharding.slices_of_step(np.arange(rows), 0, rows, "exact", cut)
    return {len(part.rows) for part in slices if part.weights.any() or not run.in_shards}


def _try_step(run: RunContext, rows: int, remedy: str) -> None:
    batch = _batch(run.target.tried_rows(run.dataset, "train", rows))
    where = f"a step with {rows} row(s) of a {'shard' if run.in_shards else 'rank'}"
    try:
        run.target.guard(where, run.learner.try_step, batch)
    except UserError as error:
        raise UserError(error.reason, remedy, option="remainder" if "drop" in remedy else "batch_size") from None


def _batch(arrays: tuple[np.ndarray, ...], part: int = 0) -> Batch:
    rows = len(arrays[0])
    return Batch(arrays, np.ones(rows, np.float32), 0.0, 0, np.arange(rows), part)
