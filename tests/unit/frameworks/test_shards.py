"""Steps in shards: the same bits for any ranks, and the weights of one batch up to rounding."""

import importlib
import itertools
import math
import re
import threading
from queue import Queue
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_equal
from support.drawn_models import Drawn
from support.learners import learner, task
from support.model_steps import task_of
from support.networks import shaped
from support.rank_threads import on_all_ranks
from support.stack import FRAMEWORKS

from hvdtrain.datasets import sharding
from hvdtrain.datasets.sharding import Cut
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Dropout, Flatten, Pool, Relu
from hvdtrain.system.phases import phases
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training.trial import find_own_changes

SHARDS = 5
SIZES = (32, 32, 3, 32)
"""Rows of the steps: of shards that differ by one row, and of a batch with fewer rows than shards.

TensorFlow compiles a step for each number of rows.
"""
IMAGES = np.random.default_rng(0).random((64, 1, 8, 8), np.float32), np.random.default_rng(1).integers(0, 10, 64)
FIRST, LAST = (Conv(4, 3),), (Relu(), Pool("average", 2), Flatten(), Dense(12), Relu(), Dropout(0.4), Dense(CLASSES))
NETWORK = NetworkTarget(shaped(Network((*FIRST, BatchNorm(), *LAST)), (1, 8, 8)))
WITHOUT_STATISTICS = NetworkTarget(shaped(Network((*FIRST, *LAST)), (1, 8, 8)))


ALONE, THREE_RANKS = ([sharding.Assignment.contiguous(ranks, SHARDS)] for ranks in (1, 3))
MOVED = [
    sharding.Assignment(by_rank)
    for by_rank in (((0, 2, 3), (1, 4)), ((3,), (0, 1, 2, 4)), ((), (0, 1, 2, 3, 4)), ((0, 1, 2), (3, 4)))
]
"""Assignments of the shards to two ranks that follow each other: apart, few of them on a rank, and none."""
SHARDED = Cut.of(0, 1, SHARDS)
NESTEROV = {"nesterov": True, "weight_decay": 0.01, "clip_norm": 0.5}
ADAM = {"optimizer": "adam", "lr": 0.01, "accumulate": 2}
BF16 = {"precision": "bf16", "optimizer": "adam", "lr": 0.01, "on_nan": "skip"}
running = threading.Lock()


def steps(arrays, *cuts, lr=0.1, of_ranks=None):
    """The steps of a rank: in shards, or with all rows of its cut as one batch if that has not SHARDS parts.

    cuts: those of the steps in turn. of_ranks: those of all ranks; by default it is alone.
    """
    random = np.random.default_rng(2)
    of_steps = itertools.cycle(zip(*(of_ranks or [cuts]), strict=True))
    for step, (size, cut) in enumerate(zip(SIZES, itertools.cycle(cuts))):
        order = random.permutation(len(arrays[0]))[:size]
        parts = zip(cut.numbers, sharding.slices_of_step(order, 0, size, "exact", cut), strict=True)
        batches = [
            Batch(tuple(array[rows] for array in arrays), weights, lr, step, rows, part)
            for part, (rows, weights) in parts
            if weights.any()
        ]
        with_rows = sharding.parts_with_rows(size, size, "exact", cut.parts)
        by_rank = tuple(tuple(part for part in of.numbers if part in with_rows) for of in next(of_steps))
        nothing = (), np.ones(0), lr, step, order
        yield Batch(*nothing, shards=tuple(batches), by_rank=by_rank) if cut.parts == SHARDS else batches[0]


def target_and_rows(framework, name):
    """The network, or a task of tests/support/tasks, with its training rows."""
    if not name:
        return NETWORK, IMAGES
    made = own_change(framework, name) if "weight" in name else task(framework, name)
    return made, made.dataset.train[np.arange(128)]


def own_change(framework, piece):
    """A task with a model that changes a weight when it is called."""
    importlib.import_module(f"support.drawn.of_{framework}")  # which draws numbers: not as the model is made
    return task_of(Drawn(framework, 3, (piece,), rows=128))


def one_at_a_time(gather, wait):
    """The collective of a rank that runs in a thread: others run while it waits.

    Generators of random numbers are the process's: a rank's numbers must be drawn before another one seeds them.
    """

    def gather_unlocked(value):
        wait()
        running.release()
        try:
            return gather(value)
        finally:
            running.acquire()

    return gather_unlocked


def train_on_ranks(framework, target, cuts_of_ranks, arrays, **options):
    """Weights with optimizer state, and the losses of all steps, on each rank.

    cuts_of_ranks: of each, those of the steps in turn.
    """

    def train(group):
        wait = importlib.import_module("mxnet").nd.waitall if framework == "mxnet" else lambda: None
        group.gather = one_at_a_time(group.gather, wait)
        with running:
            of_rank = learner(framework, target, group, **options)
            if not target.is_portable and ("shards" in options or group.size > 1):
                run = {"learner": of_rank, "config": of_rank._config, "target": target, "dataset": target.dataset}
                find_own_changes(SimpleNamespace(**run, in_shards="shards" in options), 6)
            assert of_rank.local_weights == frozenset() or "shards" not in options
            batches = steps(arrays, *cuts_of_ranks[group.rank], of_ranks=cuts_of_ranks)
            losses = [of_rank.train_step(batch) for batch in batches]
            losses = [[*map(float, loss)] if "shards" in options else float(loss) for loss in losses]
            return of_rank.weights() | of_rank.optimizer_state().arrays, losses

    return on_all_ranks(len(cuts_of_ranks), train)


def train_in_shards(framework, target, assignments, arrays, **options):
    """What all ranks have in the end. assignments: those of the steps in turn."""
    ranks = range(len(assignments[0].by_rank))
    cuts = [[one.cut(rank) for one in assignments] for rank in ranks]
    results = train_on_ranks(framework, target, cuts, arrays, shards=SHARDS, **options)
    for arrays_of_rank, losses in results[1:]:
        assert_equal(arrays_of_rank, results[0][0])
        assert losses == results[0][1]
    return results[0]


def case(framework, name, options, assignments=MOVED, short=True):
    kind = f"{name or 'network'}-{'-'.join(options)}-{len(assignments[0].by_rank)}"
    marks = [] if short else [pytest.mark.matrix]
    return pytest.param(framework, name, options, assignments, marks=marks, id=f"{framework}-{kind}")


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize(
    ("framework", "name", "options", "assignments"),
    [
        *(case(framework, "", NESTEROV) for framework in FRAMEWORKS),
        case("mxnet", "Classifier", NESTEROV),  # PyTorch refuses to normalize a single row
        case("tensorflow", "Classifier", NESTEROV, short=False),
        case("torch", "Sequences", ADAM),
        case("mxnet", "Scheduled", {"accumulate": 2}),
        case("tensorflow", "Scheduled", {"accumulate": 2}, short=False),
        case("mxnet", "", NESTEROV, THREE_RANKS),
        case("tensorflow", "", BF16, short=False),
        *(case(framework, "normalized weight", NESTEROV, short=framework == "torch") for framework in FRAMEWORKS),
        case("tensorflow", "Regression", NESTEROV),  # with regularizers, constraints and a layer of training
    ],
)
def test_any_ranks_have_the_same_bits_also_when_shards_move(framework, name, options, assignments):
    target, arrays = target_and_rows(framework, name)
    weights, losses = train_in_shards(framework, target, ALONE, arrays, **options)
    other_weights, other_losses = train_in_shards(framework, target, assignments, arrays, **options)
    assert_equal(other_weights, weights)
    assert other_losses == losses


OF_WEIGHTS, OF_ROWS = ("normalized weight", "clipped weight", "decayed weight"), ("weight by rows", "weight with noise")
LOOKED_UP = ("largest norm", "largest norm that is rare", "largest norm of a bag")
OWN = {"torch": (*OF_WEIGHTS, "weight by data", "weight of a teacher"), "mxnet": OF_WEIGHTS, "tensorflow": OF_WEIGHTS}
BY_ROWS = {"torch": (*OF_ROWS, "frozen weight by rows", *LOOKED_UP), "mxnet": OF_ROWS, "tensorflow": OF_ROWS}


def of_kinds(kinds):
    """Cases; TensorFlow compiles for seconds."""
    every = [(framework, kind) for framework in FRAMEWORKS for kind in kinds[framework]]
    return [pytest.param(*one, marks=[pytest.mark.matrix] if one[0] == "tensorflow" else []) for one in every]


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.parametrize(("framework", "kind"), of_kinds(OWN))
def test_weights_that_a_model_changes_are_those_of_one_process(framework, kind):
    """Shards and ranks make the same change, once a step."""
    target = own_change(framework, kind)
    arrays = target.dataset.train[np.arange(128)]
    ((weights, _),) = train_on_ranks(framework, target, [[Cut.of(0, 1)]], arrays)
    sharded, _ = train_in_shards(framework, target, ALONE, arrays)
    (ranks, _), _ = train_on_ranks(framework, target, [[Cut.of(rank, 2)] for rank in range(2)], arrays, strategy="ring")
    for of_ranks in (sharded, ranks):
        for name, value in weights.items():
            np.testing.assert_allclose(of_ranks[name], value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(("framework", "kind"), of_kinds(BY_ROWS))
def test_weights_that_a_model_changes_by_rows_are_refused_on_several_ranks_or_in_shards(framework, kind):
    target = own_change(framework, kind)
    arrays, cut = target.dataset.train[np.arange(128)], [Cut.of(0, 1)]
    assert train_on_ranks(framework, target, [cut], arrays)[0], "as in the framework's own loop"
    for ranks, options in ((1, {"shards": SHARDS}), (2, {"strategy": "ring"})):
        refused = refusals(framework, target, [cut] * ranks, arrays, **options)
        assert refused and re.search(
            r" changes \S+ when it is called, by the rows .* use --strategy single", refused[0]
        )


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranks_train_a_task_as_one_process_does(framework):
    """Without shards; some ranks have no row that goes through one of the layers."""
    target, arrays = target_and_rows(framework, "Regression")
    ((weights, _),) = train_on_ranks(framework, target, [[Cut.of(0, 1)]], arrays)
    cuts = [[Cut.of(rank, 2)] for rank in range(2)]
    for of_rank, _ in train_on_ranks(framework, target, cuts, arrays, strategy="ring"):
        assert of_rank.keys() == weights.keys()
        for name, value in weights.items():
            np.testing.assert_allclose(of_rank[name], value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("framework", "name"), [*((name, "") for name in FRAMEWORKS), ("mxnet", "Classifier"), ("mxnet", "Sequences")]
)
def test_the_bits_of_a_shard_do_not_depend_on_what_was_computed_before(framework, name):
    """Neither on other shards nor on evaluations; and an evaluation does not depend on those before."""
    target, arrays = target_and_rows(framework, name)
    one, other = (learner(framework, target, shards=SHARDS) for _ in range(2))
    for batch in itertools.islice(steps(arrays, SHARDED), 2):
        losses = one.train_step(batch)
        other.eval_step(tuple(array[:7] for array in arrays))
        reversed_losses = other.train_step(batch._replace(shards=batch.shards[::-1]))
        assert [*map(float, losses)] == [*map(float, reversed_losses)]
    assert_equal(other.weights(), one.weights())
    rows = tuple(array[:17] for array in arrays)
    assert one.eval_step(rows).loss == other.eval_step(rows).loss


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("options", [NESTEROV, ADAM])
def test_shards_train_as_one_batch_does(framework, options):
    shared, whole = (learner(framework, WITHOUT_STATISTICS, shards=shards, **options) for shards in (SHARDS, 0))
    for batch, expected in zip(steps(IMAGES, SHARDED), steps(IMAGES, Cut.of(0, 1)), strict=True):
        losses, loss = shared.train_step(batch), whole.train_step(expected)
        assert sum(map(float, losses)) / SHARDS == pytest.approx(float(loss), rel=1e-4)
    for name, value in whole.weights().items():
        assert np.abs(shared.weights()[name] - value).max() < (1e-5 if options is NESTEROV else 2e-3), name


@pytest.mark.parametrize(("framework", "name"), [*((name, "") for name in FRAMEWORKS), ("mxnet", "Classifier")])
def test_statistics_are_the_mean_over_shards_with_rows(framework, name):
    """Each shard begins with the same."""
    target, arrays = target_and_rows(framework, name)
    shared, alone = learner(framework, target, shards=SHARDS), learner(framework, target)
    for batch in itertools.islice(steps(arrays, SHARDED), 1, 3):
        start, after = {name: value.copy() for name, value in shared.weights().items()}, []
        for shard in batch.shards:
            alone.load(start)
            alone.train_step(shard)
            after.append({name: value.copy() for name, value in alone.weights().items() if "running" in name})
        shared.train_step(batch)
        assert len(after[0]) == 2
        for name in after[0]:
            expected = np.mean([weights[name] for weights in after], 0, np.float64)
            np.testing.assert_allclose(shared.weights()[name], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_in_which_one_shard_is_not_finite_is_skipped(framework):
    shared = learner(framework, WITHOUT_STATISTICS, shards=SHARDS, on_nan="skip", **ADAM)
    first, second, *_ = steps(IMAGES, SHARDED)
    shared.train_step(first)
    before = {name: value.copy() for name, value in (shared.weights() | shared.optimizer_state().arrays).items()}
    damaged = second.shards[3]._replace(weights=np.full_like(second.shards[3].weights, np.nan))
    losses = shared.train_step(second._replace(shards=(*second.shards[:3], damaged, second.shards[4])))
    assert [math.isnan(float(loss)) for loss in losses] == [False, False, False, True, False]
    assert_equal(shared.weights() | shared.optimizer_state().arrays, before)
    assert shared.skipped == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_recorded_step_has_the_same_bits(framework):
    recorded, expected = (learner(framework, NETWORK, shards=SHARDS) for _ in range(2))
    for batch in itertools.islice(steps(IMAGES, SHARDED), 2):
        phases.record()
        recorded.train_step(batch)
        phases.end_step(batch.step)
        (spans,) = phases.stop_recording()
        names = [span.name for span in spans.parts if span.name in ("forward", "backward", "gradients", "update")]
        shards = ["forward"] if framework == "tensorflow" else ["forward", "backward"] * len(batch.shards)
        assert names == [*shards, "gradients", "update"]
        expected.train_step(batch)
    assert_equal(recorded.weights(), expected.weights())


def refusals(*given, **options):
    """The messages of UserErrors that end ranks of `train_on_ranks`, of which others may still wait for one."""
    errors = Queue()
    with mock.patch.object(threading, "excepthook", errors.put):
        train_on_ranks(*given, **options)
    return [str(one.exc_value) for one in errors.queue if one.exc_type is UserError]


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "change", [lambda weight: weight.mul_(0.9), lambda weight: setattr(weight, "data", weight * 1)]
)
def test_a_change_that_begins_after_the_first_step_is_refused_in_shards(change):
    calls = itertools.count()

    def late(module, x):
        with importlib.import_module("torch").no_grad():
            if module.training and next(calls) > SHARDS + 4:
                change(module.layer.weight)
        return module.layer(x)

    layer = importlib.import_module("support.drawn.of_torch").Layer
    target = task_of(Drawn("torch", 3, (), rows=128), model=staticmethod(lambda: layer(late)))
    arrays, cuts = target.dataset.train[np.arange(128)], [[Cut.of(0, 1, SHARDS)]]
    refused = refusals("torch", target, cuts, arrays, shards=SHARDS)
    assert re.search("changes layer.weight .* not before the first step", refused[0])
