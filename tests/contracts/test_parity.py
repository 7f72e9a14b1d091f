"""All frameworks and numbers of ranks end with the same weights, started by the real launchers."""

import json

import numpy as np
import pytest
from support import mixed_networks
from support.jobs import PROGRAMS, distance, newest, run, train, train_several
from support.networks import shaped
from support.numpy_network import numpy_logits, random_weights
from support.parity import EVERY_STEP, PLAIN, assert_same_training, checksums, one_process, reference
from support.shared_runs import SharedRun
from support.stack import FRAMEWORKS, INSTALLED

from hvdtrain.networks.registry import NETWORKS


def on_two_ranks(framework, name, *options, own_job=False):
    """A run on two ranks of horovodrun."""
    return SharedRun(framework, name, options, "gloo", 2, own_job)


def shared_case(framework, shared, *others):
    """A framework's case, with its run; it also needs the `others`."""
    return pytest.param(shared, marks=pytest.mark.trains(shared, *others), id=framework)


@pytest.mark.guarantee("identical-ranks")
@pytest.mark.parametrize(
    "broadcast", [shared_case(name, on_two_ranks(name, "broadcast", "apart")) for name in FRAMEWORKS]
)
def test_broadcast_makes_different_initial_weights_identical(shared_jobs, broadcast):
    assert "equal on all ranks" in shared_jobs.output(broadcast)


@pytest.mark.guarantee("weights-of-one-process")
@pytest.mark.guarantee("identical-ranks")
@pytest.mark.parametrize(
    "weights",
    [shared_case(name, on_two_ranks(name, "weights", *PLAIN, *EVERY_STEP), reference()) for name in FRAMEWORKS],
)
def test_weights_over_gloo_equal_those_of_one_process(shared_jobs, weights):
    assert_same_training(shared_jobs.folder(weights), shared_jobs.folder(reference()), ranks=2)


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
    ("framework", "by", "ranks"),
    [
        ("mxnet", "gloo", 4),
        pytest.param("mxnet", "gloo", 8, marks=pytest.mark.matrix),
        pytest.param("torch", "gloo", 8, marks=pytest.mark.matrix),
        pytest.param("tensorflow", "gloo", 8, marks=pytest.mark.matrix),
        pytest.param("mxnet", "mpirun", 8, marks=pytest.mark.matrix),
    ],
)
def test_many_ranks_with_default_options_are_identical(tmp_path, framework, by, ranks):
    """horovodrun -np 8 python -m hvdtrain.<framework>_lenet for a few steps, and the same with mpirun."""
    run_folder = train(tmp_path, framework, "--max-steps", "6", by=by, np=ranks)
    sums = checksums(run_folder, "ends")
    assert len(sums) == ranks
    assert len(set(sums)) == 1


BUILT_IN = {name: shaped(name) for name in NETWORKS}
MINE = {f"{mixed_networks.__file__}:{name}": shaped(network) for name, network in mixed_networks.NETWORKS.items()}


@pytest.mark.parametrize(("framework", "api"), [*((name, "auto") for name in FRAMEWORKS), ("mxnet", "module")])
def test_logits_equal_a_numpy_reference(tmp_path, framework, api):
    networks = BUILT_IN | MINE
    status, output = run(["python", str(PROGRAMS), "logits", framework, api, *networks], tmp_path)
    assert status == 0, output
    for number, network in enumerate(networks.values()):
        found = np.load(tmp_path / f"{number}.npz")
        expected = numpy_logits(network, random_weights(network), found["images"])
        assert np.abs(found["logits"] - expected).max() < 1e-5 * max(np.abs(expected).max(), 1), list(networks)[number]


def test_average_pool_is_bit_identical_to_pytorch(tmp_path):
    assert run(["python", str(PROGRAMS), "pooling", "torch"], tmp_path) == (0, "")


def test_number_of_parameters():
    assert {name: network.size for name, network in BUILT_IN.items()} == {
        "lenet": 129_068,
        "cifar_lenet": 62_006,
        "mlp": 203_530,
        "resnet20": 272_186,
    }


# Only 8 steps, because momentum amplifies rounding; in the warm-up, where the learning rate changes at each step.
MOMENTUM = (
    *(*PLAIN[:-2], "--max-steps", "8", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.001"),
    *("--schedule", "cosine", "--warmup-epochs", "0.5"),
)
# Name: options of one process in PyTorch, options of two ranks, largest difference of their weights, frameworks.
VARIANTS = {
    "accumulate": (PLAIN, (*PLAIN, "--accumulate", "2"), 1e-5, ("torch", "tensorflow")),
    "sum": (PLAIN, (*PLAIN, "--op", "sum", "--lr", "0.01"), 1e-5, FRAMEWORKS),
    "compression": (PLAIN, (*PLAIN, "--compression", "fp16"), 2e-3, FRAMEWORKS),
    "three-groups": (PLAIN, (*PLAIN, "--groups", "3"), 1e-5, FRAMEWORKS),
    "momentum": (MOMENTUM, MOMENTUM, 2e-5, FRAMEWORKS),
    "clip": ((*PLAIN, "--clip-norm", "0.5"), (*PLAIN, "--clip-norm", "0.5"), 1e-5, FRAMEWORKS),
    "exact": ((*PLAIN, "--batch-size", "100", "--remainder", "pad"),
              (*PLAIN, "--batch-size", "100", "--remainder", "exact"), 1e-5, FRAMEWORKS),
}  # fmt: skip


def variant_case(variant, framework):
    """Variants with the same options of one process share that run, which has the name of the first of them."""
    plain, own, tolerance, _ = VARIANTS[variant]
    first = next(name for name, (options, *_) in VARIANTS.items() if options == plain)
    expected, got = one_process(first, *plain), on_two_ranks(framework, variant, *own)
    marks = pytest.mark.trains(expected, got)
    return pytest.param(variant, got, expected, tolerance, marks=marks, id=f"{variant}-{framework}")


@pytest.mark.parametrize(
    ("variant", "got", "expected", "tolerance"),
    [variant_case(name, framework) for name, (*_, frameworks) in VARIANTS.items() for framework in frameworks],
)
def test_option_has_the_same_effect_in_all_frameworks(shared_jobs, variant, got, expected, tolerance):
    weights, expected_weights = (newest(shared_jobs.folder(shared)).weights for shared in (got, expected))
    assert distance(weights, expected_weights) < tolerance
    if variant == "compression":
        assert distance(weights, expected_weights) > 1e-7, "nothing was compressed"


@pytest.mark.matrix
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_adasum(tmp_path, framework):
    """Adasum is between the sum and the average of gradients, so there is no reference: it must train, and resume.

    In PyTorch each rank has a momentum of its own.
    """
    options = ("--op", "adasum", "--lr", "0.02", "--epochs", "3")
    resume = ("--resume", "runs/part", "--max-steps", "0")
    runs = {"whole": options, "part": (*options, "--max-steps", "40"), "resumed": resume}
    folder = train_several(tmp_path, framework, runs, by="mpirun", np=2)
    assert json.loads((folder / "whole" / "result.json").read_text())["accuracy"] > 0.6
    assert distance(newest(folder / "resumed").weights, newest(folder / "whole").weights) == 0


def low_precision(framework, precision):
    """A run that is long enough to train. fp16 is slow on a CPU, so it is shorter."""
    epochs = "2" if precision == "fp16" else "4"
    options = ("--precision", precision, "--epochs", epochs, "--clip-norm", "5", "--warmup-epochs", "0")
    # MXNet's bf16 changes all graphs of its process.
    return on_two_ranks(framework, precision, *options, own_job=framework == "mxnet")


@pytest.mark.parametrize("low", [shared_case(name, low_precision(name, "bf16")) for name in FRAMEWORKS])
def test_bf16_trains(shared_jobs, low):
    assert_trained(shared_jobs.folder(low), accuracy=0.9)


@pytest.mark.matrix
@pytest.mark.parametrize("low", [shared_case(name, low_precision(name, "fp16")) for name in ("torch", "tensorflow")])
def test_fp16_trains(shared_jobs, low):
    assert_trained(shared_jobs.folder(low), accuracy=0.7)


def assert_trained(run_folder, accuracy):
    assert json.loads((run_folder / "result.json").read_text())["accuracy"] > accuracy
    assert len(set(checksums(run_folder, "ends"))) == 1


ADAM = ("--optimizer", "adam", "--lr", "0.001", "--max-steps", "16", "--strategy", "single")
ADAM_RUNS = [SharedRun(framework, "adam", ADAM) for framework in INSTALLED]
# The decay alone would make the weights of the dense layers 0.995 ** 16 = 0.92 of what they were.
ADAMW = ("--optimizer", "adamw", "--lr", "0.001", "--beta1", "0.8", "--beta2", "0.99", "--epsilon", "1e-6")
ADAMW += ("--weight-decay", "5", "--no-decay", "conv*.weight", "--no-decay", "*.bias", "--schedule", "constant")
ADAMW += ("--warmup-epochs", "0", "--max-steps", "16", "--strategy", "single")
ADAMW_RUNS = [SharedRun(framework, "adamw", ADAMW) for framework in INSTALLED]


@pytest.mark.skipif(len(INSTALLED) < 2, reason="compares frameworks, and only one is installed")
@pytest.mark.trains(*ADAM_RUNS, *ADAMW_RUNS)
@pytest.mark.parametrize("runs", [ADAM_RUNS, ADAMW_RUNS], ids=["adam", "adamw"])
def test_adam_agrees_in_all_frameworks(shared_jobs, runs):
    """On average only: near 0, rounding decides the sign of a gradient, and Adam's step does not depend on its size."""
    first, *others = (newest(shared_jobs.folder(shared)).weights for shared in runs)
    for other in others:
        for name, value in first.items():
            assert np.abs(value - other[name]).mean() < 2e-5, name


# A quarter of the weights of all layers but the convolutions would vanish without their gradients.
DECAY = ("--weight-decay", "1", "--momentum", "0", "--max-steps", "6", "--warmup-epochs", "0")
DEVICES = {"mirrored": ("--devices", "2")}  # as the other runs of its process have
NOT_CONV = (*DECAY, "--no-decay", "conv*.weight")
STYLES = [("mxnet", "manual", "ndarray"), ("mxnet", "single", "module"), ("mxnet", "single", "gluon")]
STYLES += [("torch", "manual", "auto"), ("torch", "single", "auto")]
STYLES += [("tensorflow", "mirrored", "fit"), ("tensorflow", "single", "loop")]
DECAYED = [
    SharedRun(
        framework,
        f"decay-{strategy}-{api}",
        (*NOT_CONV, "--strategy", strategy, "--api", api, *DEVICES.get(strategy, ("--devices", "1"))),
    )
    for framework, strategy, api in STYLES
    if framework in INSTALLED
]
ALL_DECAYED = SharedRun(DECAYED[0].framework, "decay-all", (*DECAY, "--strategy", "single"))


@pytest.mark.trains(*DECAYED, ALL_DECAYED)
def test_weight_decay_leaves_out_what_a_pattern_names_in_each_style(shared_jobs):
    first, *others = (newest(shared_jobs.folder(shared)).weights for shared in DECAYED)
    assert all(distance(other, first) < 1e-5 for other in others), [distance(other, first) for other in others]
    everything = newest(shared_jobs.folder(ALL_DECAYED)).weights
    shrunk = {name: np.linalg.norm(everything[name]) / np.linalg.norm(first[name]) for name in first}
    assert shrunk["conv1.weight"] < 0.85 and shrunk["conv2.weight"] < 0.85
    assert 0.9 < shrunk["dense1.weight"] < 1.1
