"""hvdtrain.load returns the trained model of each framework, which predicts what the run's evaluation did.

The runs are real trainings in the process of the test.
"""

import dataclasses
import sys

import numpy as np
import pytest
from support.in_process import inside, train_here
from support.jobs import result
from support.learners import TASKS
from support.mixed_networks import __file__ as NETWORKS
from support.stack import FASTEST, FRAMEWORKS, INSTALLED, cases

import hvdtrain
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.runs import checkpoints

SHORT = ("--batch-size", "32", "--epochs", "2", "--device", "cpu", "--lr", "0.02")
EACH = cases(FRAMEWORKS, short=set(INSTALLED))


def outputs(framework, model, *arrays):
    """What a model returns for arrays of rows, as the user of its framework calls it."""
    if framework == "torch":
        import torch

        assert isinstance(model, torch.nn.Module) and not model.training
        with torch.no_grad():
            return model(*map(torch.from_numpy, arrays))
    if framework == "mxnet":
        import mxnet as mx

        assert isinstance(model, mx.gluon.Block)
        return model(*(mx.nd.array(array, dtype=array.dtype) for array in arrays))
    import tensorflow as tf

    assert isinstance(model, tf.keras.Model)
    return model(arrays if len(arrays) > 1 else arrays[0], training=False)


def as_numpy(values):
    return values.asnumpy() if hasattr(values, "asnumpy") else np.asarray(values)


def evaluated_rows():
    """Those of the task in each framework."""
    namespace = {}
    exec((TASKS / "task_rows.py").read_text(), namespace)
    return [namespace[name][128:] for name in ("NUMBERS", "KINDS", "VALUES")]


@pytest.mark.parametrize("framework", EACH)
def test_a_task_of_two_inputs_and_of_averaged_weights(tmp_path, framework):
    task = f"{TASKS}/of_{framework}.py:Regression"
    folder = train_here(tmp_path, framework, "--model", task, *SHORT, "--ema", "0.9")
    numbers, kinds, values = evaluated_rows()
    model = hvdtrain.load(folder)
    value = as_numpy(outputs(framework, model, numbers, kinds)["value"])
    metrics = result(folder)["metrics"]
    assert np.abs(value - values).mean() == pytest.approx(metrics["distance"], rel=1e-5)


@pytest.mark.parametrize("framework", EACH)
def test_the_best_checkpoint_of_a_task_with_statistics(tmp_path, framework):
    """With batch normalization and the arguments of training; also by its class alone."""
    task = f"{TASKS}/of_{framework}.py:Classifier"
    folder = train_here(tmp_path, framework, "--model", task, *SHORT, "--arg", "width=7")
    numbers, kinds, _ = evaluated_rows()
    logits = as_numpy(outputs(framework, hvdtrain.load(f"{folder}/best"), numbers))
    assert (logits.argmax(1) == kinds).mean() == pytest.approx(checkpoints.newest(folder / "best")[1].score[0])
    checkpoint = max((folder / "checkpoints").iterdir())
    again = hvdtrain.load(checkpoint, f"{TASKS}/of_{framework}.py:Classifier")
    last = as_numpy(outputs(framework, hvdtrain.load(folder), numbers))
    assert np.array_equal(as_numpy(outputs(framework, again, numbers)), last)


@pytest.mark.parametrize("framework", EACH)
def test_a_network_gives_logits_of_images(tmp_path, framework):
    folder = train_here(tmp_path, framework, "--model", f"{NETWORKS}:WITHOUT_DROPOUT", *SHORT, "--epochs", "1")
    images, labels = load_dataset("digits").test[np.arange(len(load_dataset("digits").test))]
    images = images.astype(np.float32) / np.float32(255)
    rows = images.transpose(0, 2, 3, 1) if framework == "tensorflow" else images
    logits = as_numpy(outputs(framework, hvdtrain.load(folder), rows))
    accuracy = result(folder)["metrics"]["accuracy"]
    assert (logits.argmax(1) == labels).mean() == pytest.approx(accuracy, abs=1e-3)


def test_what_cannot_be_loaded(tmp_path, monkeypatch):
    task = tmp_path / "mine.py"
    task.write_text((TASKS / f"of_{FASTEST}.py").read_text())
    (tmp_path / "task_rows.py").write_text((TASKS / "task_rows.py").read_text())
    folder = train_here(tmp_path, FASTEST, "--model", "mine.py:Classifier", *SHORT)
    errors = {
        (tmp_path,): "no intact checkpoint there",
        (folder, "mine.py:Other"): "has no Other",
        (folder, f"{TASKS}/of_{FASTEST}.py:Regression"): "belongs to the task mine.py:Classifier",
        (folder, "mine.py"): "is no FILE.py:CLASS",
        (folder, "none.py:Classifier"): "there is no file none.py",
    }
    with inside(tmp_path):
        for arguments, text in errors.items():
            with pytest.raises(UserError, match=text):
                hvdtrain.load(*arguments)
        saved = checkpoints.newest(folder)[1]
        wider = {name: np.repeat(array, 2, 0) if array.ndim else array for name, array in saved.weights.items()}
        for changes, text in (
            ({"weights": wider}, "its weights are not those of mine.py:Classifier .*; use the code"),
            ({"framework": "caffe"}, "unknown framework 'caffe'"),
            ({"network": {"task": "loop.py", "options": {}}}, "was trained by the loop of loop.py"),
        ):
            changed = dataclasses.replace(saved, **changes)
            monkeypatch.setattr(checkpoints, "newest", lambda path, changed=changed: (path, changed))
            with pytest.raises(UserError, match=text):
                hvdtrain.load(folder)
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, FASTEST, None)
        with pytest.raises(UserError, match=f"{FASTEST} cannot be imported"):
            hvdtrain.load(folder)
