"""Training that begins with given weights, and that leaves some of them as they are."""

import os

import numpy as np
import pytest
from support.jobs import distance, launcher, newest, run

pytestmark = pytest.mark.needs("torch")
MATRIX = pytest.mark.matrix


def train(folder, name, *options, np=1, framework="torch"):
    by, strategy = ("alone", ["--strategy", "single"]) if np == 1 else ("local", [])
    program = ["python", "-m", f"hvdtrain.{framework}_lenet", "--max-steps", "4", "--device", "cpu"]
    status, output = run([*launcher(by, np), *program, *strategy, "--name", name, *options], folder)
    return status, output, folder / "runs" / name


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder with a run, `first`, and its weights in PyTorch's format."""
    import torch

    folder = tmp_path_factory.mktemp("first")
    status, output, path = train(folder, "first")
    assert status == 0, output
    tensors = {f"module.{name}": torch.from_numpy(array) for name, array in newest(path).weights.items()}
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "first.pt")
    torch.save(Evil(), folder / "evil.pt")
    return folder


def test_a_run_and_a_state_dict_begin_the_same_run(first):
    status, output, of_run = train(first, "of-run", "--weights", "runs/first")
    assert status == 0 and "--weights runs/first: 8 of the model's 8 arrays are from there" in output, output
    status, output, of_file = train(first, "of-file", "--weights", "first.pt")
    assert status == 0, output
    begin, end, same = (newest(path).weights for path in (first / "runs/first", of_run, of_file))
    assert distance(end, begin) > 0
    assert all(np.array_equal(end[name], same[name]) for name in end)


@pytest.mark.parametrize(
    "options", [(), ("--shards", "4"), *(pytest.param(("--strategy", name), marks=MATRIX) for name in ("ddp", "ring"))]
)
def test_frozen_parameters_stay_and_the_others_train_as_in_one_process(options, first):
    name = "-".join(options).strip("-") or "plain"
    given = ("--weights", "runs/first", "--freeze", "conv*", "--weight-decay", "0.1")
    status, output, ranks = train(first, f"ranks-{name}", *given, *options, np=2)
    assert status == 0, output
    shards = options if "--shards" in options else ()
    status, output, alone = train(first, f"alone-{name}", *given, *shards)
    assert status == 0, output
    begin, saved = newest(first / "runs/first").weights, newest(ranks)
    for key, array in saved.weights.items():
        assert np.array_equal(array, begin[key]) == key.startswith("conv"), key
    assert not any("conv" in key for key in saved.optimizer.arrays)
    assert distance(saved.weights, newest(alone).weights) < 1e-5 * (not shards) + 1e-12
    resumed = ["--resume", f"runs/ranks-{name}", "--max-steps", "6"]
    status, output = run(["python", "-m", "hvdtrain.torch_lenet", *resumed, "--strategy", "single"], first)
    assert status == 0, output
    assert np.array_equal(newest(ranks).weights["conv1.bias"], begin["conv1.bias"])
    assert newest(ranks).position.step == 6


@pytest.mark.parametrize("framework", ["mxnet", pytest.param("tensorflow", marks=MATRIX)])
def test_weights_of_another_framework(framework, first):
    status, output, path = train(first, framework, "--weights", "runs/first", "--lr", "1e-12", framework=framework)
    assert status == 0, output
    assert distance(newest(path).weights, newest(first / "runs/first").weights) < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weights", "evil.pt"), "--weights evil.pt: PyTorch does not read it with weights_only"),
        (("--weights", "nothing.pt"), "--weights nothing.pt: "),
        (
            ("--weights", "runs/first", "--model", "resnet20"),
            "--weights runs/first: conv1.weight is float32[20, 1, 3, 3] there, and",
        ),
        (("--weights", "runs/first", "--resume", "runs/first"), "--weights: the run to resume has its own weights"),
        (("--freeze", "cnv*"), "--freeze cnv*: no parameter has such a name"),
        (("--freeze", "*"), "--freeze: all parameters are frozen"),
    ],
)
def test_mistakes_give_one_line_and_no_run(options, message, first):
    status, output, folder = train(first, "mistake", *options)
    assert status == 2 and message in output and "Traceback" not in output
    assert not folder.exists() and not (first / "evil").exists()
