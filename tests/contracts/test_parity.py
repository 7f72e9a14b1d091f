"""All frameworks and numbers of ranks end with the same weights, started by the real launchers."""

import functools
import json

import numpy as np
import pytest
from support.jobs import FRAMEWORKS, PROGRAMS, distance, launcher, newest, run, train, train_several
from support.parity import EVERY_STEP, PLAIN, after, checksums

from hvdtrain.networks.description import Conv, Dense, Flatten, Pool, Relu
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """One process in PyTorch without Horovod: the run that all others are compared with."""
    folder = tmp_path_factory.mktemp("reference")
    return train(folder, "torch", "--strategy", "single", *PLAIN, *EVERY_STEP)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("by", "np"), [("alone", 1), ("gloo", 2), ("mpi", 2), ("mpirun", 4)])
def test_weights_equal_those_of_one_process(tmp_path, reference, framework, by, np):
    run_folder = train(tmp_path, framework, *PLAIN, *EVERY_STEP, by=by, np=np)
    assert distance(after(run_folder, 1), after(reference, 1)) < 1e-6
    assert distance(after(run_folder, 16), after(reference, 16)) < 1e-5
    for moment in ("starts", "ends"):
        sums = checksums(run_folder, moment)
        assert len(sums) == np
        assert len(set(sums)) == 1, "ranks must be bit-identical"
    one, other = (json.loads((folder / "result.json").read_text()) for folder in (run_folder, reference))
    assert one["accuracy"] == other["accuracy"]
    assert one["confusion"] == other["confusion"]


@pytest.mark.parametrize(
    ("framework", "by"), [("torch", "gloo"), ("mxnet", "gloo"), ("tensorflow", "gloo"), ("mxnet", "mpirun")]
)
def test_eight_ranks_with_default_options_are_identical(tmp_path, framework, by):
    """horovodrun -np 8 python -m hvdtrain.<framework>_lenet for a few steps, and the same with mpirun."""
    run_folder = train(tmp_path, framework, "--max-steps", "6", by=by, np=8)
    sums = checksums(run_folder, "ends")
    assert len(sums) == 8
    assert len(set(sums)) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_broadcast_makes_different_initial_weights_identical(tmp_path, framework):
    command = [*launcher("gloo", 2), "python", str(PROGRAMS), "apart", framework]
    status, output = run(command, tmp_path)
    assert status == 0, output
    assert "equal on all ranks" in output


def numpy_logits(network, weights, images):
    """The reference: the network in plain NumPy, float64."""
    x = images.astype(np.float64) / 255
    for layer in network.layers:
        match layer:
            case Conv(name=name):
                windows = np.lib.stride_tricks.sliding_window_view(x, (layer.kernel, layer.kernel), axis=(2, 3))
                x = np.einsum("nihwkl,oikl->nohw", windows, weights[f"{name}.weight"].astype(np.float64))
                x += weights[f"{name}.bias"][:, None, None]
            case Dense(name=name):
                x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
            case Pool(kind=kind, size=k):
                n, c, h, w = x.shape
                blocks = x[:, :, : h // k * k, : w // k * k].reshape(n, c, h // k, k, w // k, k)
                x = blocks.mean((3, 5)) if kind == "average" else blocks.max((3, 5))
            case Relu():
                x = np.maximum(x, 0)
            case Flatten():
                x = x.reshape(len(x), -1)
    return x


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", ["lenet", "cifar_lenet"])
def test_logits_equal_a_numpy_reference(tmp_path, framework, model):
    path = tmp_path / "logits.npy"
    status, output = run(["python", str(PROGRAMS), "logits", framework, str(path), model], tmp_path)
    assert status == 0, output
    network = NETWORKS[model]
    images = np.random.default_rng(0).integers(0, 256, (16, *network.input_shape), dtype=np.uint8)
    expected = numpy_logits(network, initial_weights(network, "xavier", 0), images)
    assert np.abs(np.load(path) - expected).max() < 1e-5


def test_average_pool_is_bit_identical_to_pytorch(tmp_path):
    assert run(["python", str(PROGRAMS), "pooling", "torch"], tmp_path) == (0, "")


def test_number_of_parameters():
    assert {name: network.size for name, network in NETWORKS.items()} == {
        "lenet": 129_068,
        "cifar_lenet": 62_006,
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
    "momentum": (MOMENTUM, MOMENTUM, 2e-5, FRAMEWORKS),
    "clip": ((*PLAIN, "--clip-norm", "0.5"), (*PLAIN, "--clip-norm", "0.5"), 1e-5, FRAMEWORKS),
    "exact": ((*PLAIN, "--batch-size", "100", "--remainder", "pad"),
              (*PLAIN, "--batch-size", "100", "--remainder", "exact"), 1e-5, FRAMEWORKS),
}  # fmt: skip
CASES = [(name, framework) for name, (*_, frameworks) in VARIANTS.items() for framework in frameworks]


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """Weights of one process in PyTorch with these options, computed once."""

    @functools.cache
    def weights(options):
        return newest(train(tmp_path_factory.mktemp("expected"), "torch", "--strategy", "single", *options)).weights

    return weights


@pytest.fixture(scope="session")
def on_two_ranks(tmp_path_factory):
    """The folder of a framework's runs, one per variant, all trained in one job of two ranks."""

    @functools.cache
    def runs(framework):
        options = {name: own for name, (_, own, _, supporting) in VARIANTS.items() if framework in supporting}
        return train_several(tmp_path_factory.mktemp(framework), framework, options, "gloo", 2)

    return runs


@pytest.mark.parametrize(("variant", "framework"), CASES)
def test_option_has_the_same_effect_in_all_frameworks(on_two_ranks, expected, variant, framework):
    plain, _, tolerance, _ = VARIANTS[variant]
    got = newest(on_two_ranks(framework) / variant).weights
    assert distance(got, expected(plain)) < tolerance
    if variant == "compression":
        assert distance(got, expected(plain)) > 1e-7, "nothing was compressed"


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_adasum(tmp_path, framework):
    """Adasum is between the sum and the average of gradients, so there is no reference: it must train."""
    run_folder = train(tmp_path, framework, "--op", "adasum", "--lr", "0.02", "--epochs", "3", by="mpirun", np=2)
    assert json.loads((run_folder / "result.json").read_text())["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("framework", "precision"),
    [("torch", "bf16"), ("torch", "fp16"), ("mxnet", "bf16"), ("tensorflow", "bf16"), ("tensorflow", "fp16")],
)
def test_low_precision_trains(tmp_path, framework, precision):
    epochs = "2" if precision == "fp16" else "4"  # fp16 is slow on a CPU
    options = ("--precision", precision, "--epochs", epochs, "--clip-norm", "5", "--warmup-epochs", "0")
    run_folder = train(tmp_path, framework, *options, by="gloo", np=2)
    assert json.loads((run_folder / "result.json").read_text())["accuracy"] > (0.7 if precision == "fp16" else 0.9)
    assert len(set(checksums(run_folder, "ends"))) == 1


def test_adam_agrees_in_all_frameworks(tmp_path):
    """On average only: near 0, rounding decides the sign of a gradient, and Adam's step does not depend on its size."""
    options = ("--optimizer", "adam", "--lr", "0.001", "--max-steps", "16", "--strategy", "single")
    torch, mxnet, tensorflow = (newest(train(tmp_path, name, "--name", name, *options)).weights for name in FRAMEWORKS)
    for other in (mxnet, tensorflow):
        for name, value in torch.items():
            assert np.abs(value - other[name]).mean() < 2e-5, name
