"""Exported networks against PyTorch's logits, and what can be wrong with a request."""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support.random_networks import random_network, random_weights

from hvdtrain.cli import export
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.frameworks import registry
from hvdtrain.frameworks.export import Model, export_onnx, random_images
from hvdtrain.frameworks.torch.network import TorchNetwork
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.networks import onnx_graph
from hvdtrain.networks.onnx_graph import to_onnx
from hvdtrain.networks.record import shaped_to_record
from hvdtrain.runs import checkpoints
from hvdtrain.system.files import replace_folder

SEEDS = range(30)


@pytest.fixture(autouse=True)
def environment(tmp_path_factory, monkeypatch):
    """Learners set variables for the whole process, as does PyTorch's import of its compiler."""
    monkeypatch.setattr(registry, "set_environment", lambda: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp()))


def logits_of_torch(network, weights, images):
    module = TorchNetwork(network).eval()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    height, width = network.used_pixels
    with torch.no_grad():
        return module(torch.from_numpy(images[:, :, :height, :width])).numpy()


@pytest.mark.parametrize("seed", SEEDS)
def test_onnx_has_the_logits_of_pytorch(seed):
    network = random_network(seed)
    weights = random_weights(network, seed)
    images = random_images(network.input_shape) / np.float32(255)
    content = to_onnx(network, weights, {"classes": "[]"}).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"classes": "[]"}
    expected = logits_of_torch(network, weights, images)
    assert np.ptp(expected, axis=0).max() > 1e-2  # they depend on the images
    for rows in (1, len(images)):
        (logits,) = session.run(["logits"], {"images": images[:rows]})
        np.testing.assert_allclose(logits, expected[:rows], rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_weights_make_the_same_file_in_whatever_order_they_are_read(seed):
    network = random_network(seed)
    weights = random_weights(network, seed)
    reversed_weights = dict(reversed(weights.items()))
    first, second = (to_onnx(network, given, {}).SerializeToString() for given in (weights, reversed_weights))
    assert first == second


def model(seed=0):
    network = random_network(seed)
    return Model("random", network, random_weights(network, seed), "torch", {})


def test_a_model_with_other_logits_is_not_written(tmp_path, monkeypatch):
    wrong = {name: array * np.float32(1.001) for name, array in model().weights.items()}
    monkeypatch.setattr(onnx_graph, "to_onnx", lambda network, weights, metadata: to_onnx(network, wrong, metadata))
    with pytest.raises(HvdtrainError, match=r"differ by .* from those of torch") as ended:
        export_onnx(model(), tmp_path / "model.onnx")
    assert ended.value.exit_status == 1
    assert not list(tmp_path.iterdir())


def test_logits_that_are_not_finite_are_an_error(tmp_path):
    wrong = model()
    name, _ = next(wrong.network.parameters())
    wrong.weights[name][:] = np.nan
    with pytest.raises(UserError, match="not finite"):
        export_onnx(wrong, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_framework_or_onnxruntime_nothing_is_compared(tmp_path, monkeypatch):
    comparison = export_onnx(dataclasses.replace(model(), framework="other"), tmp_path / "a.onnx")
    assert "unknown framework 'other'" in comparison.problem
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install 'hvdtrain[onnx]'" in export_onnx(model(), tmp_path / "b.onnx").problem
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"export to ONNX needs onnx; pip install 'hvdtrain\[onnx\]'"):
        export_onnx(model(), tmp_path / "c.onnx")
    assert sorted(os.listdir(tmp_path)) == ["a.onnx", "b.onnx"]


def test_weights_larger_than_a_file_of_onnx(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "LARGEST", 100)
    with pytest.raises(UserError, match="more than an ONNX file can hold"):
        export_onnx(model(), tmp_path / "model.onnx")


FORMATS = {
    "model.onnx": "onnx", "MODEL.ONNX": "onnx", "a.b/model.v1.pt2": "pt2", "saved_model": "saved_model",
    "resnet-1.5/": "saved_model", **dict.fromkeys(["", "/", ".", "..", "model.pt", "model.onnx/", "resnet-1.5"]),
}  # fmt: skip
"""By the names of outputs; None for names that have none."""


@pytest.mark.parametrize(("output", "format"), FORMATS.items())
def test_names_choose_the_format(output, format):
    error = pytest.raises(UserError, match=r"no format has such a name.*FOLDER/ for a SavedModel")
    with contextlib.nullcontext() if format else error:
        assert export.output_format(output) == format


def save(folder, **changes):
    """A run's folder with a checkpoint of a random network, with these changes."""
    saved = model()
    classes = tuple(map(str, range(saved.network.classes)))
    made = Checkpoint(
        *(Position(), "random", shaped_to_record(saved.network), "torch", "sgd", "ab"),
        classes=classes,
        weights=saved.weights,
    )
    folder.mkdir()
    checkpoints.save(folder / "checkpoints", dataclasses.replace(made, **changes), keep=1)
    return folder


def error_of(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        export.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_is_there_already_stays_without_force(tmp_path, capsys):
    run, file, folder = save(tmp_path / "run"), tmp_path / "model.onnx", tmp_path / "saved"
    file.write_text("mine")
    (folder / "mine").mkdir(parents=True)
    assert "is there already; --force would replace it" in error_of(capsys, run, file)
    assert file.read_text() == "mine"
    for output in (folder, tmp_path / "mine.pt2"):  # a folder that is not a SavedModel, and one where a file belongs
        (tmp_path / "mine.pt2").mkdir(exist_ok=True)
        assert "is there already, and is not" in error_of(capsys, run, output, "--force")
        assert output.is_dir()
    export.main([str(run), str(file), "--force"])
    assert "differ by at most" in capsys.readouterr().out
    properties = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert properties["classes"] == '["0", "1", "2", "3", "4", "5", "6"]'


def test_runs_and_places_that_cannot_be(tmp_path, capsys, monkeypatch):
    own_loop = save(tmp_path / "own", network={"task": "train.py", "options": {}}, model="train.py")
    assert "load its weights in code of your own" in error_of(capsys, own_loop, tmp_path / "model.pt2")
    task = save(tmp_path / "task", network={"task": "task.py:Task", "options": {}}, model="task.py:Task")
    assert "; use hvdtrain.load(" in error_of(capsys, task, tmp_path / "model.pt2")
    run = save(tmp_path / "run")
    assert "there is no folder" in error_of(capsys, run, tmp_path / "missing" / "model.onnx")
    long = tmp_path / f"{'a' * 250}.onnx"
    assert "cannot be written (File name too long)" in error_of(capsys, run, long)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "is not writable" in error_of(capsys, run, tmp_path / "model.onnx")
    assert sorted(os.listdir(tmp_path)) == ["own", "run", "task"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    def write(content):
        def fill(folder):
            folder.mkdir()
            (folder / content).touch()
            if content == "bad":
                raise ValueError
            return content

        return fill

    path = tmp_path / "saved"
    assert replace_folder(path, write("one")) == "one"
    with pytest.raises(ValueError):
        replace_folder(path, write("bad"))
    assert os.listdir(path) == ["one"]
    with monkeypatch.context() as patch, pytest.raises(FileNotFoundError):
        patch.setattr(Path, "rename", lambda self, target: os.rename(self if self == path else "", target))
        replace_folder(path, write("three"))
    (aside,) = tmp_path.glob("*/one")
    aside.parent.rename(path)
    (tmp_path / "link").symlink_to("saved")
    replace_folder(tmp_path / "link", write("two"))
    assert os.listdir(path) == ["two"]
    assert sorted(os.listdir(tmp_path)) == ["link", "saved"]
