"""Networks: shapes, sizes, weights and masks, and files, records and every kind of mistake in them."""

import itertools
import json
import os

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import mixed_networks
from support.errors import refused
from support.mixed_networks import MIXED
from support.mixed_networks import NETWORKS as MIXED_NETWORKS
from support.networks import LENET, shaped
from support.random_networks import random_network

import hvdtrain
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import (
    CLASSES,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Gelu,
    GlobalAveragePool,
    Layer,
    LeakyRelu,
    Pool,
    Relu,
    Residual,
)
from hvdtrain.networks.random_numbers import draw_masks, initial_weights
from hvdtrain.networks.record import from_record, shaped_from_record, shaped_to_record, to_record
from hvdtrain.networks.registry import NETWORKS, checked, find_network

IMAGE = (3, 10, 12)
END = (GlobalAveragePool(), Dense(CLASSES))
LOOP: list[Layer] = []
LOOP.append(Residual(LOOP))


@pytest.mark.parametrize(
    ("layer", "output"),
    [
        (Conv(8, 3), (8, 8, 10)),
        (Conv(8, 3, padding=1), (8, 10, 12)),
        (Conv(6, 3, stride=2, padding=1, groups=3), (6, 5, 6)),
        (Conv(1, 10), (1, 1, 3)),
        (Pool("max", 2), (3, 5, 6)),
        (Pool("average", 3), (3, 3, 4)),
        (Pool("max", 3, stride=2, padding=1), (3, 5, 6)),
        (Pool("average", 4, stride=1), (3, 7, 9)),
        (GlobalAveragePool(), (3,)),
        (Flatten(), (360,)),
        (BatchNorm(), IMAGE),
        (Dropout(0.5), IMAGE),
        (Residual((Conv(4, 1), Relu()), (Conv(4, 1),)), (4, 10, 12)),
        (Residual(()), IMAGE),
    ],
)
def test_outputs(layer, output):
    flatten = (Flatten(),) if len(output) == 3 else ()
    network = shaped(Network((layer, *flatten, Dense(CLASSES))), IMAGE)
    assert [found.output for found in network.walk() if type(found) is type(layer)][-1] == output


def test_names_and_shapes_of_parameters():
    names = dict(shaped(MIXED, (1, 28, 28), 7).parameters())
    assert names["stem.weight"] == (8, 1, 5, 5) and "stem.bias" not in names
    assert names["conv2.weight"] == (8, 2, 3, 3) and names["conv2.bias"] == (8,)
    assert names["conv4.weight"] == (12, 8, 1, 1), "a body before its shortcut, and a name counts"
    assert names["last.weight"] == (7, 16) and names["norm1.weight"] == names["norm1.bias"] == (8,)
    statistics = dict(shaped(MIXED).statistics())
    assert statistics["norm5.running_mean"] == statistics["norm5.running_var"] == (16,)
    assert [layer.shape for layer in shaped(MIXED).dropouts] == [(8, 7, 7), (16,)]


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((Conv(8, 11), *END), "layer 1 (conv): its windows of 11x11 do not fit in images of 3x10x12 with padding 0"),
        ((Conv(4, 3, groups=2), *END), "layer 1 (conv): 2 groups divide neither evenly: 3 inputs, 4 outputs"),
        ((Relu(), Dense(CLASSES)), "layer 2 (dense): it takes features, but gets images of 3x10x12: put a flatten"),
        ((Flatten(), Conv(4, 1), *END), "layer 2 (conv): it takes images (channels x height x width), but gets 360"),
        ((Residual((Conv(4, 3),)), *END), "layer 1 (residual): its body makes 4x8x10 and its shortcut 3x10x12"),
        (
            (Residual((Relu(), Residual((), (Conv(3, 2),)))), *END),
            "layer 1 (residual), body, layer 2 (residual): its body",
        ),
        (
            (Residual((), (Conv(0, 3),)), *END),
            "layer 1 (residual), shortcut, layer 1 (conv), outputs: Expected `int` >= 1",
        ),
        ((Flatten(), Dense(4)), "its output is 4, but the data has 10 classes; end with a dense layer"),
        ((Relu(),), "its output is 3x10x12, but the data has 10 classes"),
        ((Conv(4, 0), *END), "layer 1 (conv), kernel: Expected `int` >= 1"),
        ((Flatten(), Dense(-4), Dense(CLASSES)), "layer 2 (dense), outputs: Expected `int` >= 1"),
        ((Pool("max", 2, padding=2), *END), "padding 2 is more than half of size 2"),
        ((Pool("mean", 2), *END), "reduction: Invalid enum value 'mean'"),
        ((Dropout(1.0), *END), "layer 1 (dropout), rate: Expected `float` < 1.0"),
        ((BatchNorm(momentum=0), *END), "momentum: Expected `float` > 0.0"),
        ((BatchNorm(initial=float("inf")), *END), "initial: Expected `float`"),
        ((LeakyRelu(float("nan")), *END), "slope: Expected `float`"),
        ((Flatten(), Dense(1 << 30), Dense(CLASSES)), "layer 2 (dense): makes 1073741824 of 360, which is too large"),
        ((Conv(4, 1, name="a b"), *END), "the name 'a b' must be a letter, then letters, digits and _"),
        ((Conv(4, 1, name="a"), BatchNorm(name="a"), *END), "layer 2 (batch_norm): the name a is taken by another"),
        ((Conv(np.array([4, 4]), 3), *END), "layer 1 (conv), outputs: Expected `int`, got `array`"),
        ((Residual(LOOP), *END), "has residual layers within each other, deeper than 20"),
        ((Gelu, *END), "layers.Gelu'>)"),
    ],
)
def test_what_does_not_fit(layers, problem):
    """As `find_network` reads it."""
    option = "--model net.toml"
    text = str(refused(lambda: checked(Network(layers), option).for_data(IMAGE, 10, "net.toml"), problem))
    assert text.startswith(f"{option}: ")


def test_weights_are_checked_by_names_types_and_shapes():
    network = shaped("mlp", (1, 2, 2), 3)
    weights = {name: np.zeros(shape, np.float32) for name, shape in network.parameters()}
    network.check(weights)
    with pytest.raises(ValueError, match="the parameters are"):
        network.check({**weights, "norm1.running_mean": weights["dense1.bias"]})
    with pytest.raises(ValueError, match=r"dense2\.bias is float64, not float32"):
        network.check({**weights, "dense2.bias": np.zeros(3)})
    with pytest.raises(ValueError, match=r"dense2\.bias has shape \(256,\), but the network needs \(3,\)"):
        network.check({**weights, "dense2.bias": weights["dense1.bias"]})


def test_used_pixels():
    assert [shaped(name).used_pixels for name in ("lenet", "cifar_lenet")] == [(26, 26), (32, 32)]
    network = Network((Conv(4, 2), Relu(), Pool("max", 3), Flatten(), Dense(CLASSES)))
    assert shaped(network, (3, 8, 12)).used_pixels == (7, 10)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", NETWORKS)
def test_operations_are_those_that_pytorch_counts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the counter's import would set it for ever
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from hvdtrain.frameworks.torch.network import TorchNetwork

    network = shaped(name)
    images = torch.zeros(2, *network.input_shape)  # two, because batch normalization cannot train on one
    with FlopCounterMode(display=False) as counter:
        TorchNetwork(network)(images).sum().backward()
    assert 2 * network.training_flops == counter.get_total_flops()


ROWS = np.arange(400)
SIDE = 9
"""Of images whose number of pixels is not a multiple of the numbers in a random word."""


def network(*rates):
    return shaped(Network((*(Dropout(rate) for rate in rates), Flatten(), Dense(CLASSES))), (1, SIDE, SIDE))


def masks(*rates, seed=0, step=0, rows=ROWS):
    return draw_masks(network(*rates), seed, step, rows)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_any_split_of_the_rows_has_the_same_masks(ranks):
    whole = masks(0.5, 0.25)
    order = np.random.default_rng(0).permutation(ROWS)
    parts = [masks(0.5, 0.25, rows=part) for part in np.array_split(order, ranks)]
    for layer, mask in enumerate(whole):
        assert np.array_equal(np.concatenate([part[layer] for part in parts]), mask[order])


@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.5, 0.9, 0.999])
def test_values_are_zero_or_scaled_and_their_share_is_the_rate(rate):
    (mask,) = masks(rate)
    assert mask.dtype == np.float32 and mask.shape == (len(ROWS), 1, SIDE, SIDE)
    assert set(np.unique(mask)) <= {np.float32(0), np.float32(1 / (1 - rate))}
    deviation = (rate * (1 - rate) / mask.size) ** 0.5
    assert abs((mask == 0).mean() - rate) < 5 * deviation + 2**-17


def test_masks_of_other_seeds_steps_layers_and_rows_are_independent():
    """Those of neighbors agree in half of the values, as independent ones do; the same for an image's pixels."""
    first, second = masks(0.5, 0.5)
    others = [second, masks(0.5, seed=1)[0], masks(0.5, step=1)[0], masks(0.5, seed=2**40)[0]]
    kept = [mask > 0 for mask in (first, *others, first[np.roll(ROWS, 1)], np.roll(first, 1, axis=3))]
    deviation = 0.5 / first.size**0.5
    for one, other in itertools.combinations(kept, 2):
        assert abs((one == other).mean() - 0.5) < 5 * deviation


def test_masks_never_change():
    """A resumed run, of this version or a later one, must drop the same values."""
    (mask,) = masks(0.5, seed=3, step=7, rows=np.array([0, 5, 10**12]))
    assert np.packbits(mask.reshape(3, -1)[:, :16] > 0, axis=1).tolist() == [[129, 184], [9, 118], [66, 103]]
    again = masks(0.5, seed=3, step=7, rows=np.array([0, 5, 10**12]))
    assert np.array_equal(mask, again[0])


def test_distributions_of_initial_weights():
    book = initial_weights(LENET, "book", 0)
    assert book["dense1.weight"].std() == pytest.approx(0.01, rel=0.01)
    assert not book["conv1.bias"].any()
    xavier = initial_weights(LENET, "xavier", 0)
    limit = np.sqrt(6 / (800 + 128))
    assert np.abs(xavier["dense1.weight"]).max() == pytest.approx(limit, rel=1e-3)
    assert xavier["conv2.weight"].dtype == np.float32
    other = initial_weights(LENET, "xavier", 1)
    assert (xavier["conv1.weight"] != other["conv1.weight"]).any()


SMALL = """
input_shape = [1, 8, 8]

[[layers]]
type = "residual"
body = [{type = "conv", outputs = 1, kernel = 3, padding = 1}]

[[layers]]
type = "flatten"

[[layers]]
type = "dense"
outputs = "classes"
"""
NETWORK = Network((Residual((Conv(1, 3, padding=1),)), Flatten(), Dense(CLASSES)), (1, 8, 8))


def rejected(model):
    text = str(refused(lambda: shaped(find_network(str(model)), (1, 28, 28))))
    assert text.startswith(f"--model {model}: ") or text.startswith("--model mine: ")
    return text


def test_built_in_networks():
    assert all(find_network(name) is network for name, network in NETWORKS.items())
    assert hvdtrain.Network is Network
    with pytest.raises(AttributeError, match="has no attribute 'Networks'"):
        hvdtrain.Networks  # noqa: B018


def test_toml(tmp_path, monkeypatch):
    (tmp_path / "net.toml").write_text(SMALL)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_network(str(tmp_path / "net.toml")) == find_network("~/net.toml") == NETWORK
    (tmp_path / "bom.toml").write_text(SMALL, encoding="utf-8-sig")
    assert find_network(str(tmp_path / "bom.toml")) == NETWORK


def test_python_file(tmp_path):
    assert find_network(f"{mixed_networks.__file__}:MIXED") == mixed_networks.MIXED
    (tmp_path / "blocks.py").write_text("from hvdtrain.networks.layers import Conv\nBODY = [Conv(1, 3, padding=1)]\n")
    (tmp_path / "net.py").write_text(
        "import numpy as np\n"
        "from hvdtrain import Network\n"
        "from hvdtrain.networks.layers import CLASSES, Dense, Flatten, Residual\n"
        "from blocks import BODY\n"
        "NETWORK = Network([Residual(BODY), Flatten(), Dense(CLASSES)], [1, 8, np.int64(8)])\n"
    )
    assert find_network(f"{tmp_path}/net.py:NETWORK") == NETWORK, "lists, and numbers of NumPy, are taken"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("lenett", "no such network (did you mean lenet?); give lenet, cifar_lenet, mlp, resnet20, a file NETWORK"),
        ("", "no such network"),
        ("net.py", "net.py:CLASS"),
        ("net.py:", "no such network"),
        (".toml", "cannot be read"),  # a folder
        ("pipe.toml", "cannot be read (not a regular file)"),
        ("nowhere.toml", "cannot be read (No such file or directory)"),
        ("x\0y.toml", ""),
        ("nowhere.py:NETWORK", "there is no file nowhere.py; give FILE.py:NAME"),
    ],
)
def test_unknown_names(model, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    assert problem in rejected(model)


IMPORTS = "from hvdtrain import Network\nfrom hvdtrain.networks.layers import *\n"
DENSE = '[[layers]]\ntype = "dense"\noutputs = '


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("net.toml", "x = " + "[" * 5000, "is not TOML"),
        ("net.toml", "", "Object missing required field `layers`; correct the network"),
        ("net.toml", f"{DENSE}0x{'f' * 9000}", "outputs: Expected `int` <= 2147483647"),
        ("net.toml", f"{DENSE}10", "layer 1 (dense): it takes features, but gets images of 1x28x28"),
        ("net.toml", SMALL, "takes images of 1x8x8, but"),
        ("net.toml", " " * (1 << 21), "cannot be read (larger than 32 KiB)"),
        ("net.py:NETWORK", "", "has no NETWORK"),
        ("net.py:NETWORK", "NETWORK = 5", "is 5; give a hvdtrain.Network"),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = (", "line 3: SyntaxError"),
        ("net.py:NETWORK", "import no_such_module", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("net.py:NETWORK", "def f():\n    raise ValueError('two\\nlines')\nf()", "line 2: ValueError: two lines"),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = Network(5)", "is Network(layers=5"),
        (
            "net.py:NETWORK",
            f"{IMPORTS}NETWORK = Network((Residual(Relu()),))",
            "layer 1 (residual), body: Expected `array`",
        ),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = Network((Dropout(float('nan')),))", "rate: Expected `float`"),
    ],
)
def test_mistakes_in_files(name, content, problem, tmp_path):
    (tmp_path / name.partition(":")[0]).write_text(content)
    assert problem in rejected(tmp_path / name)


def test_a_record_has_the_values_that_are_not_the_default():
    layers = (Conv(4, 3, padding=1), Residual((Relu(),)), Residual(()), Dense("classes", name="last"))
    assert to_record(Network(layers, (1, 8, 8))) == {
        "input_shape": [1, 8, 8],
        "layers": [
            {"type": "conv", "outputs": 4, "kernel": 3, "padding": 1},
            {"type": "residual", "body": [{"type": "relu"}]},
            {"type": "residual", "body": []},
            {"type": "dense", "outputs": "classes", "name": "last"},
        ],
    }


@settings(derandomize=True, max_examples=60, database=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
@example(0, 0)
def test_networks_are_read_as_they_were_written(seed, classes):
    for network in [*NETWORKS.values(), *MIXED_NETWORKS.values()] if not classes else []:
        assert from_record(json.loads(json.dumps(to_record(network)))) == network
    network = random_network(seed, classes or 1)
    record = json.loads(json.dumps(shaped_to_record(network)))
    assert shaped_from_record(record, "random") == network
    assert shaped_to_record(shaped_from_record(record, "random")) == record


LAYER = {"type": "conv", "outputs": 4, "kernel": 3}


def nested(depth):
    layer = {"type": "relu"}
    for _ in range(depth):
        layer = {"type": "residual", "body": [layer]}
    return layer


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (5, "Expected `object`, got `int` (5)"),
        ({"layers": []}, "has no layers, or more than 10000"),
        ({"layers": [{"type": "relu"}] * 10_001}, "has no layers, or more than 10000"),
        ({"layers": [nested(25)]}, "has residual layers within each other, deeper than 20"),
        ({"layers": [nested(400)]}, "deeper than 20"),
        ({"layers": [nested(9000)]}, "deeper than 20"),
        (
            {"layers": [LAYER], "classes": 3},
            "unknown field `classes` (did you mean layers?); known: layers, input_shape",
        ),
        (
            {"layers": [LAYER], "input_shape": [1, 28]},
            "(channels, height, width): Expected `array` of length 3, got 2",
        ),
        ({"layers": [LAYER], "input_shape": [1, 0, 28]}, "input_shape (channels, height, width): Expected `int` >= 1"),
        ({"layers": [LAYER, 5]}, "layer 2: Expected `object`, got `int` (5)"),
        ({"layers": [{"outputs": 3}]}, "layer 1: Object missing required field `type`"),
        ({"layers": [{"type": "covn"}]}, "layer 1: Invalid value 'covn' (did you mean conv?); known: conv, dense"),
        ({"layers": [{"type": "z" * 10**5}]}, f"layer 1: Invalid value '{'z' * 60}'; known: conv, dense"),
        ({"layers": [{**LAYER, "k" * 10**5: 3}]}, f"contains unknown field `{'k' * 60}`; known: outputs, kernel"),
        ({"layers": [{"type": "dense"}]}, "layer 1 (dense): Object missing required field `outputs`"),
        (
            {"layers": [{"type": "relu", "slope": 1.0}]},
            "layer 1 (relu): Object contains unknown field `slope`; known: none",
        ),
        (
            {"layers": [{**LAYER, "kernal": 3}]},
            "layer 1 (conv): Object contains unknown field `kernal` (did you mean kernel?)",
        ),
        ({"layers": [{**LAYER, "stride": 10**5000}]}, "layer 1 (conv), stride: Expected `int` <= 2147483647"),
        ({"layers": [{**LAYER, "bias": 1}]}, "layer 1 (conv), bias: Expected `bool`, got `int`"),
        ({"layers": [{"type": "dense", "outputs": "class"}]}, "layer 1 (dense), outputs: Invalid enum value 'class'"),
        ({"layers": [{"type": "residual", "body": 5}]}, "layer 1 (residual), body: Expected `array`, got `int`"),
        (
            {"layers": [LAYER, {"type": "residual", "body": [], "shortcut": [{"type": "dense", "outputs": 0.5}]}]},
            "layer 2 (residual), shortcut, layer 1 (dense), outputs: Expected `int | str`, got `float`",
        ),
    ],
)
def test_other_values_are_rejected(record, problem):
    with pytest.raises(ValueError) as raised:
        from_record(record)
    assert problem in str(raised.value) and "\n" not in str(raised.value)


SHAPED = shaped_to_record(shaped("lenet"))


@pytest.mark.parametrize(
    "record",
    [None, [], {}, {**SHAPED, "classes": True}, {**SHAPED, "classes": 10**30}, {**SHAPED, "input_shape": "1x28x28"},
     {**SHAPED, "input_shape": [1, 0, 28]}, {**SHAPED, "description": None}],
)  # fmt: skip
def test_a_record_of_a_network_on_data_is_checked(record):
    with pytest.raises(ValueError, match=r"Expected|Object missing"):
        shaped_from_record(record, "mine")
