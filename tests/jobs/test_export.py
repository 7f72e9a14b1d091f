"""hvdtrain export: models that other programs run without hvdtrain, with the same logits in every format."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from support.jobs import ROOT, run, train
from support.random_networks import random_network, random_weights
from support.stack import FRAMEWORKS, INSTALLED, REFERENCE

from hvdtrain.frameworks.export import random_images
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.networks.record import shaped_to_record
from hvdtrain.runs import checkpoints

SEED = 170
"""Of a network with all kinds of layers but global_average_pool."""
EXPORT = "import sys; from hvdtrain.cli import export; [export.main([sys.argv[1], one]) for one in sys.argv[2:]]"
ALONE = "import sys; sys.modules['hvdtrain'] = None; import numpy; images = numpy.load('images.npy'); "
"""Begins programs that cannot import hvdtrain."""
RUN_ONNX = f"""{ALONE}import onnxruntime
for name in {INSTALLED}:
    model = onnxruntime.InferenceSession(name + '.onnx', providers=['CPUExecutionProvider'])
    numpy.save(name, model.run(None, {{'images': images}})[0])
"""
RUN_PT2 = f"""{ALONE}import json, torch
extra = {{'metadata.json': ''}}
model = torch.export.load('model.pt2', extra_files=extra).module()
assert json.loads(json.loads(extra['metadata.json'])['classes'])[3] == 'class 3'
numpy.save('pt2', model(torch.from_numpy(images)).detach().numpy())
"""
RUN_TASK = {
    "torch": f"""{ALONE}import torch
given = [torch.from_numpy(images), torch.arange(len(images)) % 5]
numpy.save('found', torch.export.load('model.pt2').module()(*given)['value'].detach().numpy())
""",
    "tensorflow": f"""{ALONE}import tensorflow
run = tensorflow.saved_model.load('model').signatures['serving_default']
given = tensorflow.constant(images), tensorflow.range(len(images), dtype='int64') % 5
numpy.save('found', run(input_0=given[0], input_1=given[1])['value'])
""",
}
RUN_SAVED_MODEL = f"""{ALONE}import json, tensorflow
model = tensorflow.saved_model.load('saved')
metadata = json.load(open('saved/assets.extra/metadata.json'))
assert json.loads(metadata['classes'])[3] == 'class 3'
numpy.save('saved_model', model.signatures['serving_default'](images=tensorflow.constant(images))['logits'])
"""


def save(folder: Path, framework: str) -> None:
    """A checkpoint as `framework` writes it, of a random network."""
    network = random_network(SEED)
    checkpoint = Checkpoint(
        random_weights(network, SEED), OptimizerState({}), Position(), "random", shaped_to_record(network), framework,
        "sgd", "ab", 0.0, tuple(f"class {number}" for number in range(network.classes)),
    )  # fmt: skip
    folder.mkdir()
    checkpoints.save(folder / "checkpoints", checkpoint, keep=1)


def test_all_formats_have_the_same_logits_without_hvdtrain(tmp_path):
    outputs = {
        "torch": ["torch.onnx", "model.pt2"],
        "mxnet": ["mxnet.onnx"],
        "tensorflow": ["tensorflow.onnx", "saved/"],
    }
    programs = {"torch": {"pt2": RUN_PT2}, "tensorflow": {"saved_model": RUN_SAVED_MODEL}}
    others = {name: program for framework in INSTALLED for name, program in programs.get(framework, {}).items()}
    for framework in INSTALLED:
        save(tmp_path / framework, framework)
        status, output = run([sys.executable, "-c", EXPORT, framework, *outputs[framework]], tmp_path)
        assert status == 0, output
        assert output.count(f"are those of hvdtrain in {framework}: they differ by at most") == len(outputs[framework])
    images = random_images(random_network(SEED).input_shape)[:3] / np.float32(255)
    np.save(tmp_path / "images.npy", images)
    for program in (RUN_ONNX, *others.values()):
        status, output = run([sys.executable, "-c", program], tmp_path)
        assert status == 0, output
    found = {name: np.load(tmp_path / f"{name}.npy") for name in (*INSTALLED, *others)}
    assert np.ptp(found[REFERENCE], axis=0).max() > 1e-2
    for name, logits in found.items():
        np.testing.assert_allclose(logits, found[REFERENCE], rtol=0, atol=2e-5 * np.abs(logits).max(), err_msg=name)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.matrix
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", ["lenet", "resnet20"])
def test_a_run_of_each_framework_in_each_format(framework, model, tmp_path):
    folder = train(tmp_path, framework, "--strategy", "single", "--epochs", "1", "--model", model)
    formats = {"model.onnx": framework, "model.pt2": "torch", "saved": "tensorflow"}
    for output in [output for output, writer in formats.items() if writer in INSTALLED]:
        status, output = run(["python", "-m", "hvdtrain", "export", str(folder), output], tmp_path)
        assert status == 0, output
        assert "they differ by at most" in output


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.matrix)])
def test_the_model_of_a_task_runs_without_hvdtrain(framework, tmp_path):
    task = f"{ROOT}/tests/support/tasks/of_{framework}.py:Regression"
    folder = train(tmp_path, framework, "--model", task, "--strategy", "single", "--epochs", "1")
    output = {"torch": "model.pt2", "tensorflow": "model/"}[framework]
    export = ["python", "-m", "hvdtrain", "export", str(folder), output]
    status, printed = run(export, tmp_path)
    assert status == 2 and f"give --model {task}" in printed
    status, printed = run([*export, "--model", task], tmp_path)
    assert status == 0, printed
    assert f"are those of hvdtrain in {framework}: they differ by at most" in printed
    numbers = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.save(tmp_path / "images.npy", numbers)
    status, printed = run([sys.executable, "-c", RUN_TASK[framework]], tmp_path)
    assert status == 0, printed
    weights = checkpoints.newest(folder)[1].weights
    if framework == "torch":
        of_kind, kernel, bias = weights["of_kind.weight"], weights["last.weight"].T, weights["last.bias"]
    else:
        (number,) = (int(name.split(".")[0]) for name, array in weights.items() if array.shape == (7, 1))
        of_kind, kernel, bias = weights["0.embeddings"], weights[f"{number}.kernel"], weights[f"{number + 1}.bias"]
    expected = np.concatenate([numbers, of_kind[np.arange(7) % 5]], 1) @ kernel + bias
    if framework == "torch":
        expected *= weights["turn"].real
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected[:, 0], rtol=1e-5, atol=1e-5)
