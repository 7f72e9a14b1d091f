"""hvdtrain export: models that other programs run without hvdtrain, with the same logits in every format.

Those programs are a process: it cannot import hvdtrain.
"""

import os
import sys
from pathlib import Path

import numpy as np
from support.in_process import command
from support.jobs import succeed
from support.random_networks import random_network, random_weights
from support.stack import INSTALLED, REFERENCE

from hvdtrain.frameworks.export import random_images
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.networks.record import shaped_to_record
from hvdtrain.runs import checkpoints

SEED = 170
"""Of a network with all kinds of layers but global_average_pool."""
OUTPUTS = {"torch": ["torch.onnx", "model.pt2"], "mxnet": ["mxnet.onnx"], "tensorflow": ["tensorflow.onnx", "saved/"]}
RUN = {
    "onnx": f"""import onnxruntime
for name in {INSTALLED}:
    model = onnxruntime.InferenceSession(name + '.onnx', providers=['CPUExecutionProvider'])
    numpy.save(name, model.run(None, {{'images': images}})[0])
""",
    "torch": """import json, torch
extra = {'metadata.json': ''}
model = torch.export.load('model.pt2', extra_files=extra).module()
assert json.loads(json.loads(extra['metadata.json'])['classes'])[3] == 'class 3'
numpy.save('pt2', model(torch.from_numpy(images)).detach().numpy())
""",
    "tensorflow": """import json, tensorflow
model = tensorflow.saved_model.load('saved')
metadata = json.load(open('saved/assets.extra/metadata.json'))
assert json.loads(metadata['classes'])[3] == 'class 3'
numpy.save('saved_model', model.signatures['serving_default'](images=tensorflow.constant(images))['logits'])
""",
}


def run_alone(folder: Path, images: np.ndarray, *programs: str) -> None:
    """Run these programs in one process that cannot import hvdtrain."""
    np.save(folder / "images.npy", images)
    begin = "import sys; sys.modules['hvdtrain'] = None; import numpy; images = numpy.load('images.npy')\n"
    succeed([sys.executable, "-c", begin + "".join(programs)], folder)


def save(folder: Path, framework: str) -> None:
    """A checkpoint as `framework` writes it, of a random network."""
    network = random_network(SEED)
    checkpoint = Checkpoint(
        *(Position(), "random", shaped_to_record(network), framework, "sgd", "ab"),
        classes=tuple(f"class {number}" for number in range(network.classes)),
        weights=random_weights(network, SEED),
    )
    folder.mkdir()
    checkpoints.save(folder / "checkpoints", checkpoint, keep=1)


def test_all_formats_have_the_same_logits_without_hvdtrain(tmp_path):
    for framework in INSTALLED:
        save(tmp_path / framework, framework)
        for output in OUTPUTS[framework]:
            status, printed = command(tmp_path, "export", framework, output)
            assert status == 0 and f"are those of hvdtrain in {framework}: they differ by at most" in printed, printed
    own = {"torch": "pt2", "tensorflow": "saved_model"}
    others = [name for name in own if name in INSTALLED]
    images = random_images(random_network(SEED).input_shape)[:3] / np.float32(255)
    run_alone(tmp_path, images, *(RUN[name] for name in ("onnx", *others)))
    found = {name: np.load(tmp_path / f"{name}.npy") for name in (*INSTALLED, *(own[name] for name in others))}
    assert np.ptp(found[REFERENCE], axis=0).max() > 1e-2
    for name, logits in found.items():
        np.testing.assert_allclose(logits, found[REFERENCE], rtol=0, atol=2e-5 * np.abs(logits).max(), err_msg=name)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
