"""Training that begins with given weights, and that leaves some of them as they are.

Two ranks are a job, as all of them must begin with what one has read; one rank trains in the test's process.
"""

import numpy as np
import pytest
from support.in_process import train_here
from support.jobs import distance, newest, train_several
from support.untrusted import Harm

from hvdtrain.errors import UserError

pytestmark = pytest.mark.needs("torch")
STEPS = ("--max-steps", "4", "--device", "cpu")
FROZEN = (*STEPS, "--weights", "runs/first", "--freeze", "conv*", "--weight-decay", "0.1")
OTHERS = [
    pytest.param("mxnet", marks=pytest.mark.needs("mxnet")),
    pytest.param("tensorflow", marks=[pytest.mark.needs("tensorflow"), pytest.mark.matrix]),
]
RANKS = {"plain": (), "shards": ("--shards", "4"), "ddp": ("--strategy", "ddp"), "ring": ("--strategy", "ring")}
"""Options of two ranks, by name."""


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder with a run, `first`, and its weights in PyTorch's format."""
    import torch

    folder = tmp_path_factory.mktemp("first")
    path = train_here(folder, "torch", *STEPS, "--name", "first")
    tensors = {f"module.{name}": torch.from_numpy(array) for name, array in newest(path).weights.items()}
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "first.pt")
    torch.save(Harm(folder / "evil"), folder / "evil.pt")
    return folder


def test_a_run_and_a_state_dict_begin_the_same_run(first):
    of_run, of_file = (
        train_here(first, "torch", *STEPS, "--name", f"of-{name}", "--weights", given)
        for name, given in (("run", "runs/first"), ("file", "first.pt"))
    )
    log = (of_run / "logs" / "rank-0.log").read_text()
    assert "--weights runs/first: 8 of the model's 8 arrays are from there" in log
    begin, end, same = (newest(path).weights for path in (first / "runs/first", of_run, of_file))
    assert distance(end, begin) > 0
    assert all(np.array_equal(end[name], same[name]) for name in end)


@pytest.fixture(scope="module")
def ranks(first):
    """The folder of the runs of two ranks."""
    return train_several(first, "torch", {name: (*FROZEN, *options) for name, options in RANKS.items()}, "local", 2)


@pytest.mark.parametrize("name", RANKS)
def test_frozen_parameters_stay_and_the_others_train_as_in_one_process(name, first, ranks):
    shards = RANKS[name] if name == "shards" else ()
    alone = train_here(first, "torch", *FROZEN, *shards, "--name", f"alone-{name}")
    begin, saved = newest(first / "runs/first").weights, newest(ranks / name)
    for key, array in saved.weights.items():
        assert np.array_equal(array, begin[key]) == key.startswith("conv"), key
    assert not any("conv" in key for key in saved.optimizer.arrays)
    assert distance(saved.weights, newest(alone).weights) < 1e-5 * (not shards) + 1e-12
    train_here(first, "torch", "--resume", f"runs/{name}", "--max-steps", "6", "--strategy", "single")
    assert np.array_equal(newest(ranks / name).weights["conv1.bias"], begin["conv1.bias"])
    assert newest(ranks / name).position.step == 6


@pytest.mark.parametrize("framework", OTHERS)
def test_weights_of_another_framework(framework, first):
    path = train_here(first, framework, *STEPS, "--name", framework, "--weights", "runs/first", "--lr", "1e-12")
    assert distance(newest(path).weights, newest(first / "runs/first").weights) < 1e-6


@pytest.mark.parametrize("framework", OTHERS)
def test_another_framework_goes_on_with_frozen_parameters(framework, first):
    path = train_here(first, "torch", *FROZEN, "--ema", "0.5", "--name", f"frozen-{framework}")
    before = newest(path)
    train_here(first, framework, "--resume", f"runs/frozen-{framework}", "--max-steps", "6")
    after = newest(path)
    assert (after.framework, after.position.step) == (framework, 6)
    assert after.optimizer.arrays.keys() == before.optimizer.arrays.keys()
    for key, array in after.weights.items():
        assert np.array_equal(array, before.weights[key]) == key.startswith("conv"), key


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weights", "evil.pt"), "--weights evil.pt: it holds objects (posix.mkdir), and only tensors"),
        (("--weights", "runs/first", "--resume", "runs/first"), "--weights: the run to resume has its own weights"),
        (("--freeze", "cnv*"), "--freeze cnv*: matches no trained parameter"),
        (("--freeze", "*"), "--freeze: all parameters are frozen"),
    ],
)
def test_mistakes_give_no_run(options, message, first):
    with pytest.raises(UserError) as error:
        train_here(first, "torch", *STEPS, "--name", "mistake", *options)
    assert message in error.value.reason and "\n" not in error.value.reason
    assert not (first / "runs" / "mistake").exists() and not (first / "evil").exists()
