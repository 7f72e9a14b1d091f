"""What is tried before the first step is what training and evaluations do with a user's model, and changes nothing."""

import contextlib
import importlib
import random

import numpy as np
import pytest
from support.in_process import inside
from support.model_steps import assert_close
from support.user_loop_runs import starter

import hvdtrain
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.runs import checkpoints
from hvdtrain.training import start, trial

torch = pytest.importorskip("torch")
for name in ("tensorflow", "mxnet"):  # before a test, as they set variables of the environment
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
nn = torch.nn
NUMBERS = np.random.default_rng(3).normal(size=(200, 8)).astype(np.float32)
LABELS = (NUMBERS[:, 0] > 0).astype(np.int64)


def task(model, rows=24, tested=10, losses=None):
    """A task of this model, which is trained on so many rows, and tested on others."""

    class Task:
        def data(self):
            return (NUMBERS[:rows], LABELS[:rows]), (NUMBERS[-tested:], LABELS[-tested:])

        def model(self):
            return model()

    if losses:
        Task.losses = lambda self, outputs, labels: losses(outputs, labels)
    return Task()


def trained(folder, given, framework="torch", **options):
    """The newest checkpoint after two epochs."""
    common = {"framework": framework, "strategy": "single", "epochs": 2, "batch_size": 8, "lr": 0.1}
    folder.mkdir(exist_ok=True)
    with inside(folder):
        config, runtime = Config(**common | options), RuntimeOptions(device="cpu", quiet=True)
        return checkpoints.newest(hvdtrain.fit(given, config, runtime).folder)[1]


def of_layer(function, **layers):
    """A module of these layers, and of a function of itself and its inputs."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for name, layer in layers.items():
                setattr(self, name, layer())

        def forward(self, x):
            return function(self, x)

    return Model


def classes():
    return nn.Linear(8, 3)


def slope(values, x):
    return torch.autograd.grad(values.sum(), x, create_graph=True)[0]


def forces(module, x):
    x = x.requires_grad_(True)
    energies = torch.tanh(module.layer(x))
    return energies + slope(energies, x)[:, :3]


def with_inputs(module, x):
    x = x.detach().requires_grad_(True)
    return torch.tanh(module.layer(x)), x


def penalty(outputs, labels):
    values, x = outputs
    return nn.functional.cross_entropy(values, labels, reduction="none") + (slope(values, x).norm(dim=1) - 1) ** 2


def of_function(module, x):
    return module.layer(x) + torch.func.vmap(torch.func.grad(lambda row: module.layer(row).sum()))(x)[:, :3]


def checkpointed(module, x):
    return torch.utils.checkpoint.checkpoint(module.last, torch.relu(module.layer(x)), use_reentrant=True)


def with_inference_mode(module, x):
    with torch.inference_mode(not module.training):
        return module.layer(x)


# What a model computes, with its own losses or without.
GRADIENTS = {
    "forces": (of_layer(forces, layer=classes), None),
    "penalty": (of_layer(with_inputs, layer=classes), penalty),
    "torch.func": (of_layer(of_function, layer=classes), None),
    "reentrant checkpoint": (of_layer(checkpointed, layer=lambda: nn.Linear(8, 8), last=classes), None),
    "inference mode": (of_layer(with_inference_mode, layer=classes), None),
}


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_inside_of_a_model_and_its_losses_train_as_in_pytorchs_own_loop(name, tmp_path):
    model, losses = GRADIENTS[name]
    saved = trained(tmp_path, task(model, rows=8, losses=losses), momentum=0.0, weight_decay=0.0, seed=3)
    torch.manual_seed(3)
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        outputs, labels = module(torch.from_numpy(NUMBERS[:8].copy())), torch.from_numpy(LABELS[:8])
        (losses or nn.functional.cross_entropy)(outputs, labels).mean().backward()
        optimizer.step()
    assert_close(saved.weights, {key: value.numpy() for key, value in module.state_dict().items()})


def test_a_scripts_evaluation_may_compute_gradients(tmp_path):
    def evaluate(x, y):
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    with starter(tmp_path, "torch")(batch_size=8) as run:
        model, _ = run.setup(model := of_layer(forces, layer=classes)(), torch.optim.SGD(model.parameters(), 0.1))
        for x, y in run.batches((NUMBERS[:16], LABELS[:16]), (NUMBERS[16:], LABELS[16:]), evaluate):
            run.step(evaluate(x, y))
    assert (tmp_path / "run" / "result.json").exists()


def normalized():
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def of_pairs(module, x):
    return module.layer(x.reshape(-1, 16)).reshape(-1, 3)


@pytest.mark.parametrize(
    ("model", "rows", "options", "is_taken"),
    [
        (normalized, 25, {}, False),
        (normalized, 25, {"remainder": "drop"}, True),
        (normalized, 25, {"max_steps": 3}, True),
        (normalized, 26, {}, True),
        (normalized, 28, {"batch_size": 12, "shards": 3, "remainder": "exact"}, False),
        (normalized, 27, {"batch_size": 24, "accumulate": 3}, False),
        (normalized, 30, {"batch_size": 24, "accumulate": 3}, True),
        (normalized, 24, {"accumulate": 8}, False),
        (of_layer(of_pairs, layer=lambda: nn.Linear(16, 6)), 29, {}, False),
        (of_layer(lambda module, x: module.layer(x.view(8, 8)), layer=classes), 30, {}, False),
        (of_layer(lambda module, x: module.layer(x.view(8, 8)), layer=classes), 30, {"remainder": "drop"}, True),
    ],
)
def test_a_number_of_rows_that_the_model_does_not_take_is_an_error_before_the_first_step(
    model, rows, options, is_taken, tmp_path
):
    if is_taken:
        assert trained(tmp_path, task(model, rows), **options)
        return
    with pytest.raises(UserError) as caught:
        trained(tmp_path, task(model, rows), **options)
    assert caught.value.option in ("remainder", "batch_size") and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.matrix) for n in range(3, 12))])
def test_all_numbers_of_rows_of_steps_and_evaluations_are_tried(seed, tmp_path, monkeypatch):
    draw, seen, trials = random.Random(seed), [], []

    def noted(module, x):
        seen.append((module.training, len(x)))
        return module.layer(x)

    def try_out(run):
        trial.try_out(run)
        trials.extend(seen)
        seen.clear()

    monkeypatch.setattr(start, "try_out", try_out)
    options = draw.choice([{"shards": draw.randint(1, 5)}, {"accumulate": draw.randint(1, 3)}, {}])
    given = task(of_layer(noted, layer=classes), draw.randint(12, 60), draw.randint(1, 99))
    trained(tmp_path, given, batch_size=draw.randint(5, 12), epochs=1, **options)
    whole = max(seen, key=lambda call: call)[1]
    assert {call for call in seen if call[0]} - {*trials} <= {(True, whole), (True, whole - 1)}
    assert {min(call for call in seen if not call[0])} <= {*trials}


def centered():
    """Its buffer changes in each call."""

    def call(module, x):
        module.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return module.layer(x - module.mean)

    module = of_layer(call, layer=classes)()
    module.register_buffer("mean", torch.zeros(8))
    return module


def always_in_training():
    def call(module, x):
        return module.layer(module.normal.train()(x))

    return of_layer(call, layer=classes, normal=lambda: nn.BatchNorm1d(8))()


def quantized(kind):
    quantization = pytest.importorskip("torch.ao.quantization")
    model = nn.Sequential(quantization.QuantStub(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model.qconfig = quantization.get_default_qat_qconfig(kind)
    return quantization.prepare_qat(model.train())


def keras_model(call, **layers):
    keras = pytest.importorskip("tensorflow").keras

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(3)
            self.other = getattr(keras, layers["of"]).__dict__[layers["name"]]()

        def call(self, x, training=False):
            return self.last(call(self.other, x))

    return Model()


def counted(metric, x):
    metric.update_state(x)
    return x - metric.result()


def gluon_block():
    mx = pytest.importorskip("mxnet")

    class Block(mx.gluon.Block):
        def __init__(self):
            super().__init__()
            self.last = mx.gluon.nn.Dense(3, in_units=8)
            self.mean = self.params.get("mean", shape=(8,), init="zeros", grad_req="null")

        def forward(self, x):
            with mx.autograd.pause():
                self.mean.set_data(self.mean.data() * 0.9 + x.mean(axis=0) * 0.1)
            return self.last(x - self.mean.data())

    return Block()


CHANGED = {
    "buffer": (centered, "torch"),
    "batch normalization": (always_in_training, "torch"),
    "fbgemm": (lambda: quantized("fbgemm"), "torch"),
    "x86": (lambda: quantized("x86"), "torch"),
    "qnnpack": (lambda: quantized("qnnpack"), "torch"),
    "metric": (lambda: keras_model(counted, of="metrics", name="Mean"), "tensorflow"),
    "Keras' batch normalization": (
        lambda: keras_model(lambda layer, x: layer(x, training=True), of="layers", name="BatchNormalization"),
        "tensorflow",
    ),
    "Gluon's parameter": (gluon_block, "mxnet"),
}
MARKS = dict.fromkeys(("qnnpack", "batch normalization", "Keras' batch normalization"), pytest.mark.matrix)


@pytest.mark.filterwarnings("ignore:Please use quant_min", "ignore:.*deprecated")
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CHANGED])
def test_an_evaluation_leaves_no_trace_in_what_is_trained(name, tmp_path):
    model, framework = CHANGED[name]
    few, many = (trained(tmp_path / str(rows), task(model, tested=rows), framework) for rows in (3, 90))
    assert any(array.any() for array in few.weights.values())
    assert_close(many.weights, few.weights, 0)


@pytest.mark.parametrize("count", [8, 4])
def test_a_stateful_layer_gets_the_number_of_rows_that_it_was_made_for(count, tmp_path):
    keras, rows = pytest.importorskip("tensorflow").keras, 7 * count // 2

    def model():
        layers, first = keras.layers, keras.layers.InputLayer(batch_input_shape=(count, 8))
        return keras.Sequential([first, layers.Reshape((4, 2)), layers.GRU(4, stateful=True), layers.Dense(3)])

    with pytest.raises(UserError) as caught:
        trained(tmp_path, task(model, rows), "tensorflow", batch_size=count)
    assert caught.value.option == "remainder" and "drop" in caught.value.remedy
    few, many = (
        trained(tmp_path / f"{tested}", task(model, rows, tested), "tensorflow", batch_size=count, remainder="drop")
        for tested in (3, 21)
    )
    assert_close(many.weights, few.weights, 0)
    assert [*few.weights.values()][-1].any(), "its state"


def test_a_graph_that_a_block_makes_once_is_made_in_training(tmp_path):
    mx = pytest.importorskip("mxnet")

    class Doubled(mx.gluon.nn.HybridSequential):
        def hybrid_forward(self, F, x):
            return self[0](x) * (2 if mx.autograd.is_training() else 1)

    def model(is_graph):
        block, part = mx.gluon.nn.Sequential(), Doubled()
        part.add(mx.gluon.nn.Dense(3, in_units=8))
        part.hybridize(is_graph)
        block.add(part)
        return block

    one, other = (
        trained(tmp_path / str(is_graph), task(lambda is_graph=is_graph: model(is_graph)), "mxnet", epochs=1)
        for is_graph in (True, False)
    )
    assert_close(one.weights, other.weights, 1e-6)


def limited(framework):
    """A model that fails with other weights than its own."""
    library = pytest.importorskip(framework)
    if framework == "tensorflow":

        def call(layer, x):
            outputs = layer(x)
            library.debugging.assert_less(layer.gamma, 1.0001)
            return outputs

        return keras_model(call, of="layers", name="LayerNormalization")

    class Block(library.gluon.nn.Dense):
        def forward(self, x):
            assert self.weight.data().max().asscalar() < 0.0501
            return super().forward(x)

    return Block(3, in_units=8, weight_initializer=library.init.Constant(0.05))


@pytest.mark.parametrize("framework", ["tensorflow", "mxnet"])
def test_a_model_that_fails_with_other_weights_is_tried_with_its_own(framework, tmp_path, monkeypatch):
    monkeypatch.setattr("hvdtrain.frameworks.registry.settle", lambda *_: None)  # TensorFlow may compute already
    assert trained(tmp_path, task(lambda: limited(framework)), framework, shards=2, lr=1e-6).position.step == 6
