"""Before a run begins: what training and evaluations will do with a user's model is done once, on its first rows."""

from __future__ import annotations

import contextlib

import numpy as np

from hvdtrain.config.score import AUTO, check_measured
from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.frameworks.row_checks import BY_SCRIPT, BY_TASK, ROUNDING, changes_by_rows, mixed_rows, to_numpy
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.progress import Progress, place
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
    _check_state(run, max(whole))
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
    place.now = Progress()
    with learner.unchanged(is_trial=True):
        before = checksum(learner.weights())
        for rows in dict.fromkeys((min(lengths), max(lengths))):  # whose metrics count, as some batches may have none
            arrays = target.tried_rows(run.dataset, part, rows)
            evaluated = target.guard(f"an evaluation of {rows} row(s)", learner.choose_eval_mode, arrays)
        learner.changes_in_evaluation = checksum(learner.weights()) != before or _changes_others(learner, arrays)
        if not (target.mixes_rows or target.is_portable):
            _check_rows(run, target.tried_rows(run.dataset, part, 2))
    check_measured(run.config.score, metric_names(run, evaluated))


def _changes_others(learner: Learner, arrays: tuple[np.ndarray, ...]) -> bool:
    """Whether an evaluation changes other weights than the first ones, such as a memory that it empties."""
    if not learner.untrained:
        return False
    with contextlib.suppress(Exception), learner.unchanged():  # of a model that fails with others
        learner.load(_moved(learner, 0.01, untrained=True))
        before = checksum(learner.weights())
        learner.try_evaluation(arrays)
        return checksum(learner.weights()) != before
    return False


def _check_state(run: RunContext, count: int) -> None:
    """Raise UserError if what is found for rows is another value after a step with other weights that is taken back."""
    learner, target, data = run.learner, run.target, run.dataset
    count = count if target.needed_rows else min(count, TRIED_ROWS * run.config.accumulate * learner.devices)
    trained = target.tried_rows(data, "train", count) if target.kind == "task" else ()  # a script has its loop
    tested = target.tried_rows(data, data.evaluated, TRIED_ROWS) if len(data.parts[data.evaluated]) else ()
    rounding = ROUNDING * (0.01 if learner.device == "cpu" else 10)  # of the same sums
    with learner.unchanged(is_trial=True):
        first = _found(run, trained, tested)
        with contextlib.suppress(Exception), learner.unchanged():  # of a model that fails with other weights
            learner.load(_moved(learner, 0.01))
            _found(run, *(tuple(np.repeat(array[-1:], len(array), 0) for array in rows) for rows in (trained, tested)))
        again = _found(run, trained, tested)
    for name, value in first.items():
        near = ROUNDING**4 + rounding * np.nanmax(np.abs(value), initial=0)  # of losses of 0, one rounding is all
        if name in again and not np.allclose(value, again[name], rounding, near, equal_nan=True):
            raise UserError(
                f"{_where(run)}: {name} of the same rows, with the same weights and seeds, is another one after a step "
                "that is taken back, so something has changed that no checkpoint has: a counter, a tensor kept from "
                "batch to batch, a generator of its own, or a weight outside of the model",
                "ask hvdtrain.progress() for the step, draw from the global generators, or let the model keep it: as a "
                "buffer, in Gluon as a parameter with grad_req='null', in Keras as a weight that is not trained",
            )


def _found(run: RunContext, trained: tuple[np.ndarray, ...], tested: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """What is found for rows in training, and for others in an evaluation, by names for messages."""
    learner, guard = run.learner, run.target.guard
    with learner.unchanged():
        learner.seed_trial()
        found = {"the loss": to_numpy(guard("a step", learner.try_step, _batch(trained)))} if trained else {}
        place.now = Progress()
        with contextlib.suppress(Exception):  # of a model that does not take so few rows, and where there are none
            loss, metrics, *_ = learner.try_evaluation(tuple(map(np.array, tested)))
            found |= {f"in an evaluation, {name}": np.array(of) for name, of in {"the loss": loss, **metrics}.items()}
    return found


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
            learner.load(_moved(learner, scale))
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


def _moved(learner: Learner, scale: float, untrained: bool = False) -> Weights:
    """The weights, each of those that are trained, or of the others, moved a little in its own way."""
    weights = learner.weights()
    for number, name in enumerate(sorted(weights)):
        if weights[name].dtype.kind in "fc" and (name in learner.untrained) == untrained:
            move = scale * (1 + number / len(weights))
            weights[name] = np.asarray(weights[name] * (1 + move) + move / 10, weights[name].dtype)
    return weights


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
    rows, place.now = len(arrays[0]), Progress(training=True)  # the step is computed now
    # Copies, as a model may change its rows.
    return Batch(tuple(map(np.array, arrays)), np.ones(rows, np.float32), 0.0, 0, np.arange(rows), part)
