"""What is tried before the first step is what training and evaluations do with a user's model, and changes nothing."""

import contextlib
import importlib
import random

import numpy as np
import pytest
from support.drawn_models import task_class
from support.fits import as_plain, trained
from support.model_steps import GRADIENTS, assert_close, of_pieces
from support.user_loop_runs import starter

from hvdtrain.errors import UserError
from hvdtrain.training import train, trial

torch = pytest.importorskip("torch")
for name in ("tensorflow", "mxnet"):  # before a test, as they set variables of the environment
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
nn = torch.nn
NUMBERS = np.random.default_rng(3).normal(size=(200, 8)).astype(np.float32)
LABELS = (NUMBERS[:, 0] > 0).astype(np.int64)


def task(model, rows=24, tested=10):
    """A task of this model, which is trained on so many rows, and tested on others."""

    class Task:
        def data(self):
            return (NUMBERS[:rows], LABELS[:rows]), (NUMBERS[-tested:], LABELS[-tested:])

        def model(self):
            return model()

    return Task()


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


MATRIX = pytest.mark.matrix


def classes():
    return nn.Linear(8, 3)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("pieces", "losses"), [*(((piece,), "plain") for piece in GRADIENTS), ((), "penalty of inputs")]
)
def test_gradients_inside_of_a_model_and_its_losses_train_as_in_pytorchs_own_loop(pieces, losses, tmp_path):
    drawn = of_pieces("torch", *pieces, losses=losses)
    saved = trained(tmp_path, task_class(drawn)(), **as_plain(drawn))
    assert_close(saved.weights, drawn.kinds.plain(drawn, True))


def test_a_scripts_evaluation_may_compute_gradients(tmp_path):
    drawn = of_pieces("torch", "forces")
    with starter(tmp_path, "torch")() as run:
        drawn.kinds.script(drawn, run)
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

    monkeypatch.setattr(train, "try_out", try_out)
    options = draw.choice([{"shards": draw.randint(1, 5)}, {"accumulate": draw.randint(1, 3)}, {}])
    given = task(of_layer(noted, layer=classes), draw.randint(12, 60), draw.randint(1, 99))
    trained(tmp_path, given, batch_size=draw.randint(5, 12), epochs=1, **options)
    whole = max(seen, key=lambda call: call)[1]
    assert {call for call in seen if call[0]} - {*trials} <= {(True, whole), (True, whole - 1)}
    assert {min(call for call in seen if not call[0])} <= {*trials}


CHANGED = [
    ("torch", "centered"),
    *(pytest.param("torch", name, marks=MATRIX) for name in ("always batch norm", "quantization qnnpack")),
    *(("torch", f"quantization {kind}") for kind in ("fbgemm", "x86")),
    ("tensorflow", "watched mean"),
    pytest.param("tensorflow", "always batch norm", marks=MATRIX),
    ("mxnet", "centered"),
]


@pytest.mark.filterwarnings("ignore:Please use quant_min", "ignore:.*deprecated")
@pytest.mark.parametrize(("framework", "piece"), CHANGED)
def test_an_evaluation_leaves_no_trace_in_what_is_trained(framework, piece, tmp_path):
    pytest.importorskip(framework)
    few, many = (
        trained(tmp_path / str(rows), task_class(of_pieces(framework, piece, test_rows=rows))(), framework)
        for rows in (3, 90)
    )
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
    pytest.importorskip("mxnet")
    drawn = of_pieces("mxnet", "branch, hybridized")
    saved = trained(tmp_path, task_class(drawn)(), "mxnet", **as_plain(drawn))
    assert_close(saved.weights, drawn.kinds.plain(drawn, True))


def limited(framework):
    """A model that fails with other weights than its own."""
    library = pytest.importorskip(framework)
    if framework == "tensorflow":

        class Limited(library.keras.layers.LayerNormalization):
            def call(self, x):
                library.debugging.assert_less(self.gamma, 1.0001)
                return super().call(x)

        return library.keras.Sequential([Limited(), library.keras.layers.Dense(3)])

    class Block(library.gluon.nn.Dense):
        def forward(self, x):
            assert self.weight.data().max().asscalar() < 0.0501
            return super().forward(x)

    return Block(3, in_units=8, weight_initializer=library.init.Constant(0.05))


@pytest.mark.parametrize("framework", ["tensorflow", "mxnet"])
def test_a_model_that_fails_with_other_weights_is_tried_with_its_own(framework, tmp_path, monkeypatch):
    monkeypatch.setattr("hvdtrain.frameworks.registry.settle", lambda *_: None)  # TensorFlow may compute already
    assert trained(tmp_path, task(lambda: limited(framework)), framework, shards=2, lr=1e-6).position.step == 6


class Memory(nn.Module):
    """Keeps what it computed, which an evaluation empties; it is empty before the first step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("memory", torch.zeros(3))

    def forward(self, x):
        if not self.training:
            self.memory.zero_()
        outputs = self.layer(x) + self.memory
        if self.training:
            self.memory.copy_(outputs[0].detach() / 2)
        return outputs


def test_an_evaluation_that_empties_a_memory_leaves_no_trace(tmp_path):
    few, many = (trained(tmp_path / str(rows), task(Memory, tested=rows), batch_size=8, epochs=2) for rows in (1, 90))
    assert few.weights["memory"].any()
    assert_close(many.weights, few.weights, 0)


def test_a_model_may_change_its_rows(tmp_path):
    def changing(module, x):
        x -= 1.0
        return module.layer(x)

    assert trained(tmp_path, task(of_layer(changing, layer=classes)), batch_size=8)


class Merged(nn.Linear):
    """As layers with LoRA: in evaluations, another matrix is part of the weight."""

    def __init__(self):
        super().__init__(8, 3)
        self.other, self.is_merged = nn.Parameter(torch.ones(3, 8)), False

    def train(self, mode=True):
        super().train(mode)
        if self.is_merged == mode:
            self.weight.data += self.other.data * (-1 if mode else 1)
            self.is_merged = not mode
        return self

    def forward(self, x):
        return super().forward(x) if self.is_merged else super().forward(x) + x @ self.other.T


class Apart(Merged):
    """The same, without anything that evaluations change."""

    train = nn.Linear.train


def test_a_model_may_change_its_weights_for_evaluations(tmp_path):
    merged, apart = (trained(tmp_path / kind.__name__, task(kind), batch_size=8) for kind in (Merged, Apart))
    assert_close(merged.weights, apart.weights, 1e-5)


class Out:
    def __init__(self, **values):
        vars(self).update(values)


@pytest.mark.parametrize(
    "form",
    [
        lambda losses: {"nothing": None, "number": losses.sum(), "losses": losses},
        lambda losses: Out(text="", losses=losses),
        lambda losses: (None, [losses]),
    ],
)
def test_outputs_of_any_form_need_no_targets(form, tmp_path):
    class Task:
        def data(self):
            return (NUMBERS[:24],), (NUMBERS[-10:],)

        def model(self):
            return of_layer(lambda module, x: form(module.layer(x)[:, 0] ** 2), layer=classes)()

        def losses(self, outputs):
            found = outputs if isinstance(outputs, dict) else vars(outputs) if isinstance(outputs, Out) else {}
            return found["losses"] if found else outputs[1][0]

    assert trained(tmp_path, Task(), batch_size=8)
