"""--ema: averages of weights are evaluated, saved, resumed bit for bit, and move between frameworks."""

import json

import numpy as np
import pytest
from support.jobs import newest, run, train, train_several
from support.networks import LENET
from support.numpy_network import numpy_logits
from support.stack import FRAMEWORKS, INSTALLED

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.runs import checkpoints

OPTIONS = ("--strategy", "single", "--ema", "0.9", "--lr", "0.02", "--epochs", "1", "--warmup-epochs", "0")
OPTIONS += ("--device", "cpu", "--batch-size", "128", "--threads", "1")
STEPS = 7


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """By framework, the folder of runs in one job: of some steps, of a part of these, and without averages."""
    known = {}

    def of(framework):
        if framework not in known:
            runs = {
                "whole": (*OPTIONS, "--max-steps", str(STEPS)),
                "part": (*OPTIONS, "--max-steps", "4"),
                "plain": (*OPTIONS, "--max-steps", str(STEPS), "--ema", "0"),
            }
            known[framework] = train_several(tmp_path_factory.mktemp(framework), framework, runs, "alone", 1)
        return known[framework]

    return of


def loss_of(weights):
    """Mean loss of LeNet on the test data, by NumPy."""
    test = load_dataset("digits").test
    images, labels = test[np.arange(len(test))]
    logits = numpy_logits(LENET, weights, images).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_averages_are_evaluated_and_leave_training_as_it_is(first, framework):
    folder = first(framework)
    saved, plain = newest(folder / "whole"), newest(folder / "plain")
    for name, value in plain.weights.items():
        np.testing.assert_array_equal(saved.weights[name], value, err_msg=name)
    assert not plain.averages and saved.averages.keys() == saved.weights.keys()
    recorded = json.loads((folder / "whole" / "result.json").read_text())["loss"]
    assert recorded == pytest.approx(loss_of(saved.evaluated), rel=1e-4)
    assert recorded != pytest.approx(loss_of(saved.weights), rel=1e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_resumed_run_has_the_averages_of_one_that_was_not_interrupted(tmp_path, first, framework):
    folder = first(framework)
    resume = (
        "--resume",
        str(folder / "part" / "checkpoints" / "step-00000004"),
        "--max-steps",
        str(STEPS),
        "--name",
        "run",
    )
    resumed, whole = newest(train(tmp_path, framework, *resume, by="alone", np=1)), newest(folder / "whole")
    assert whole.averages.keys() == resumed.averages.keys()
    for name, average in whole.averages.items():
        np.testing.assert_array_equal(resumed.averages[name], average, err_msg=name)


@pytest.mark.skipif(len(INSTALLED) < 2, reason="compares frameworks, and only one is installed")
@pytest.mark.needs(*INSTALLED[:2])
def test_averages_move_between_frameworks(tmp_path, first):
    one, other = INSTALLED[:2]
    start = first(one) / "part" / "checkpoints" / "step-00000004"
    moved = newest(train(tmp_path, other, "--name", "run", "--resume", str(start), "--max-steps", str(STEPS)))
    expected = newest(first(one) / "whole")
    for name, average in expected.averages.items():
        np.testing.assert_allclose(moved.averages[name], average, atol=1e-5, err_msg=name)


def test_the_exported_model_has_the_averages(tmp_path, first):
    folder = first(INSTALLED[0])
    command = ["python", "-m", "hvdtrain", "export", str(folder / "whole"), "model.onnx"]
    status, output = run(command, tmp_path)
    assert status == 0, output
    saved = checkpoints.newest(folder / "whole")[1]
    content = (tmp_path / "model.onnx").read_bytes()
    assert saved.averages["conv1.bias"].tobytes() in content
    assert saved.weights["conv1.bias"].tobytes() not in content
