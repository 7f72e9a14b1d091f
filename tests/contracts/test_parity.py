"""All frameworks and numbers of ranks end with the same weights, started by the real launchers.

It starts processes because ranks exchange gradients through the real Horovod; see conftest.py.
"""

import numpy as np
import pytest
from support.jobs import distance, result, train
from support.parity import EVERY_STEP, PLAIN, assert_same_training, checksums, one_process, reference
from support.shared_runs import SharedRun, over_ranks, trains
from support.stack import FRAMEWORKS, INSTALLED


def shared_case(framework, shared, *others, short=True):
    """A framework's case, with its run; it also needs the `others`."""
    return trains(shared, runs=(shared, *others), id=framework, short=short)


@pytest.mark.guarantee("identical-ranks")
@pytest.mark.parametrize(
    "broadcast", [shared_case(name, over_ranks(name, "broadcast", "apart")) for name in FRAMEWORKS]
)
def test_broadcast_makes_different_initial_weights_identical(shared_jobs, broadcast):
    assert "equal on all ranks" in shared_jobs.output(broadcast)


@pytest.mark.guarantee("weights-of-one-process")
@pytest.mark.guarantee("identical-ranks")
@pytest.mark.parametrize(
    "weights", [shared_case(name, over_ranks(name, "weights", *PLAIN, *EVERY_STEP), reference()) for name in FRAMEWORKS]
)
def test_weights_over_gloo_equal_those_of_one_process(shared_jobs, weights):
    assert_same_training(shared_jobs.folder(weights), shared_jobs.folder(reference()), weights.ranks)


@pytest.mark.guarantee("weights-of-one-process")
@pytest.mark.trains(reference())
@pytest.mark.parametrize(
    "framework", ["mxnet", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("torch", "tensorflow"))]
)
@pytest.mark.parametrize(
    ("by", "np"), [("mpi", 2), *(pytest.param(*one, marks=pytest.mark.matrix) for one in (("alone", 1), ("mpirun", 4)))]
)
def test_weights_equal_those_of_one_process(tmp_path, shared_jobs, framework, by, np):
    run_folder = train(tmp_path, framework, *PLAIN, *EVERY_STEP, by=by, np=np)
    assert_same_training(run_folder, shared_jobs.folder(reference()), ranks=np)


@pytest.mark.guarantee("identical-ranks")
@pytest.mark.parametrize(
    "many",
    [
        shared_case(
            f"{name}-{by}-{ranks}",
            over_ranks(name, "default", "--max-steps", "6", by=by, ranks=ranks),
            short=ranks == 3,
        )
        for name, by, ranks in [
            ("mxnet", "gloo", 3),
            *((name, "gloo", 8) for name in FRAMEWORKS),
            ("mxnet", "mpirun", 8),
        ]
    ],
)
def test_many_ranks_with_default_options_are_identical(shared_jobs, many):
    """horovodrun -np 8 python -m hvdtrain.<framework>_lenet for a few steps, and the same with mpirun."""
    sums = checksums(shared_jobs.folder(many), "ends")
    assert len(sums) == many.ranks
    assert len(set(sums)) == 1


# Name: options of one process in PyTorch, options over ranks, largest difference of their weights, frameworks. The
# short suite has the first of these; test_combinations has all options in pairs, and test_strategies momentum.
VARIANTS = {
    "accumulate": (PLAIN, (*PLAIN, "--accumulate", "2"), 1e-5, ("torch", "tensorflow", "mxnet")),
    "compression": (PLAIN, (*PLAIN, "--compression", "fp16"), 2e-3, ("mxnet", "torch", "tensorflow")),
    "three-groups": (PLAIN, (*PLAIN, "--groups", "3"), 1e-5, ("tensorflow", "torch", "mxnet")),
    "clip": ((*PLAIN, "--clip-norm", "0.5"), (*PLAIN, "--clip-norm", "0.5"), 1e-5, FRAMEWORKS),
    "exact": ((*PLAIN, "--batch-size", "100", "--remainder", "pad"),
              (*PLAIN, "--batch-size", "100", "--remainder", "exact"), 1e-5, ("mxnet", "torch", "tensorflow")),
}  # fmt: skip


def variant_cases():
    """Variants with the same options of one process share that run, which has the name of the first of them."""
    for variant, (plain, own, tolerance, frameworks) in VARIANTS.items():
        first = next(name for name, (options, *_) in VARIANTS.items() if options == plain)
        expected = one_process(first, *plain)
        for framework in frameworks:
            got = over_ranks(framework, variant, *own)
            name, short = f"{variant}-{framework}", framework == frameworks[0]
            yield trains(variant, got, expected, tolerance, runs=(got, expected), id=name, short=short)


@pytest.mark.parametrize(("variant", "got", "expected", "tolerance"), [*variant_cases()])
def test_option_has_the_same_effect_in_all_frameworks(shared_jobs, variant, got, expected, tolerance):
    weights, expected_weights = (shared_jobs.newest(shared).weights for shared in (got, expected))
    assert distance(weights, expected_weights) < tolerance
    if variant == "compression":
        assert distance(weights, expected_weights) > 1e-7, "nothing was compressed"


def low_precision(framework, precision, epochs):
    """A run that is long enough to train."""
    options = ("--precision", precision, "--epochs", epochs, "--clip-norm", "5", "--warmup-epochs", "0")
    return over_ranks(framework, precision, *options)


@pytest.mark.parametrize(
    ("low", "accuracy"),
    [
        *(trains(low := low_precision(name, "bf16", "4"), 0.9, runs=[low], id=f"bf16-{name}") for name in FRAMEWORKS),
        # Slow on a CPU, so shorter.
        *(
            trains(low := low_precision(name, "fp16", "2"), 0.7, runs=[low], id=f"fp16-{name}", short=False)
            for name in ("torch", "tensorflow")
        ),
    ],
)
def test_low_precision_trains(shared_jobs, low, accuracy):
    assert result(shared_jobs.folder(low))["accuracy"] > accuracy
    assert len(set(checksums(shared_jobs.folder(low), "ends"))) == 1


ADAM = ("--optimizer", "adam", "--lr", "0.001", "--max-steps", "16", "--strategy", "single")
# The decay alone would make the weights of the dense layers 0.995 ** 16 = 0.92 of what they were.
ADAMW = ("--optimizer", "adamw", "--lr", "0.001", "--betas", "0.8:0.99", "--epsilon", "1e-6")
ADAMW += ("--weight-decay", "5", "--no-decay", "conv*.weight", "--no-decay", "*.bias", "--schedule", "constant")
ADAMW += ("--warmup-epochs", "0", "--max-steps", "16", "--strategy", "single")


def adam_case(name, options, short):
    runs = [SharedRun(framework, name, options) for framework in INSTALLED]
    return trains(runs, runs=runs, id=name, short=short)


@pytest.mark.skipif(len(INSTALLED) < 2, reason="compares frameworks, and only one is installed")
@pytest.mark.parametrize("runs", [adam_case("adam", ADAM, False), adam_case("adamw", ADAMW, True)])
def test_adam_agrees_in_all_frameworks(shared_jobs, runs):
    """On average only: near 0, rounding decides the sign of a gradient, and Adam's step does not depend on its size."""
    first, *others = (shared_jobs.newest(shared).weights for shared in runs)
    for other in others:
        for name, value in first.items():
            assert np.abs(value - other[name]).mean() < 2e-5, name


# A quarter of the weights of all layers but the convolutions would vanish without their gradients.
DECAY = ("--weight-decay", "1", "--momentum", "0", "--max-steps", "6", "--warmup-epochs", "0")
DEVICES = {"keras-fit-mirrored": ("--devices", "2")}  # as the other runs of its process have
NOT_CONV = (*DECAY, "--no-decay", "conv*.weight")
STYLES = [
    ("mxnet", "manual"),
    ("mxnet", "module-single"),
    ("mxnet", "single"),
    ("torch", "manual"),
    ("torch", "single"),
]
STYLES += [("tensorflow", "keras-fit-mirrored"), ("tensorflow", "single")]
DECAYED = [
    SharedRun(
        framework, f"decay-{strategy}", (*NOT_CONV, "--strategy", strategy, *DEVICES.get(strategy, ("--devices", "1")))
    )
    for framework, strategy in STYLES
    if framework in INSTALLED
]
ALL_DECAYED = SharedRun(DECAYED[0].framework, "decay-all", (*DECAY, "--strategy", "single"))


@pytest.mark.trains(*DECAYED, ALL_DECAYED)
def test_weight_decay_leaves_out_what_a_pattern_names_in_each_style(shared_jobs):
    first, *others = (shared_jobs.newest(shared).weights for shared in DECAYED)
    assert all(distance(other, first) < 1e-5 for other in others), [distance(other, first) for other in others]
    everything = shared_jobs.newest(ALL_DECAYED).weights
    shrunk = {name: np.linalg.norm(everything[name]) / np.linalg.norm(first[name]) for name in first}
    assert shrunk["conv1.weight"] < 0.85 and shrunk["conv2.weight"] < 0.85
    assert 0.9 < shrunk["dense1.weight"] < 1.1
