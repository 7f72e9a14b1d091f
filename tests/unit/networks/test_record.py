"""Networks as JSON values, and back."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mixed_networks import NETWORKS as MIXED_NETWORKS
from support.networks import shaped
from support.numpy_network import numpy_logits, random_weights
from support.random_networks import random_network

from hvdtrain.frameworks.torch.network import TorchNetwork
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import Conv, Dense, Relu, Residual
from hvdtrain.networks.record import from_record, shaped_from_record, shaped_to_record, to_record
from hvdtrain.networks.registry import NETWORKS

RANDOM = settings(derandomize=True, max_examples=60, database=None)


@pytest.mark.parametrize("network", [*NETWORKS.values(), *MIXED_NETWORKS.values()])
def test_networks_are_read_as_they_were_written(network):
    record = json.loads(json.dumps(to_record(network)))
    assert from_record(record) == network and to_record(from_record(record)) == record


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


@RANDOM
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_random_networks_are_read_as_they_were_written(seed, classes):
    network = random_network(seed, classes)
    record = json.loads(json.dumps(shaped_to_record(network)))
    assert shaped_from_record(record, "random") == network
    assert shaped_to_record(shaped_from_record(record, "random")) == record


@RANDOM
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_random_networks_have_the_logits_of_the_reference(seed, classes):
    network = random_network(seed, classes)
    weights, model = random_weights(network), TorchNetwork(network).eval()
    network.check({name: value.numpy() for name, value in model.state_dict().items()})
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    images = np.random.default_rng(0).integers(0, 256, (3, *network.input_shape), np.uint8)
    height, width = network.used_pixels
    with torch.no_grad():
        logits = model(torch.from_numpy(images[:, :, :height, :width]).float() / 255).numpy()
    expected = numpy_logits(network, weights, images)
    assert logits.shape == (3, network.classes)
    assert np.abs(logits - expected).max() <= 1e-4 * max(1, np.abs(expected).max())


LAYER = {"type": "conv", "outputs": 4, "kernel": 3}
DEEP = {"type": "relu"}
for _ in range(25):
    DEEP = {"type": "residual", "body": [DEEP]}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (5, "has no list of layers"),
        ({}, "has no list of layers"),
        ({"layers": {}}, "has no list of layers"),
        ({"layers": []}, "has no layers, or more than 10000"),
        ({"layers": [{"type": "relu"}] * 10_001}, "has no layers, or more than 10000"),
        ({"layers": [DEEP]}, "has residual layers within each other, deeper than 20"),
        ({"layers": [LAYER], "classes": 3}, "has an unknown key 'classes'; it may have input_shape and layers"),
        ({"layers": [LAYER], "input_shape": [1, 28]}, "input_shape is [1, 28], not three numbers"),
        ({"layers": [LAYER], "input_shape": [1, 28, -28]}, "input_shape is [1, 28, -28], not three numbers"),
        ({"layers": [LAYER], "input_shape": [1, 28, True]}, "input_shape is [1, 28, True], not three numbers"),
        ({"layers": [LAYER], "input_shape": 0}, "input_shape is 0, not three numbers"),
        ({"layers": [LAYER, 5]}, "layer 2: 5 is not a layer with a type"),
        ({"layers": [{"kind": "conv"}]}, "layer 1: {'kind': 'conv'} is not a layer with a type"),
        ({"layers": [{"type": ["conv"]}]}, "is not a layer with a type"),
        ({"layers": [{"type": "covn"}]}, "layer 1: no type 'covn' (did you mean conv?); there are conv, dense"),
        ({"layers": [{"type": "dense"}]}, "layer 1 (dense): outputs is missing"),
        (
            {"layers": [{**LAYER, "sride": 2}]},
            "layer 1 (conv): no value 'sride' (did you mean stride?); it has outputs",
        ),
        ({"layers": [{"type": "relu", "slope": 1.0}]}, "layer 1 (relu): no value 'slope'"),
        ({"layers": [{**LAYER, "inputs": 3}]}, "layer 1 (conv): no value 'inputs'"),
        ({"layers": [{**LAYER, "stride": 1.5}]}, "layer 1 (conv): stride is 1.5, not an integer"),
        ({"layers": [{**LAYER, "stride": True}]}, "layer 1 (conv): stride is True, not an integer"),
        ({"layers": [{**LAYER, "stride": 10**5000}]}, "layer 1 (conv): stride is too large a value, not an integer"),
        ({"layers": [{**LAYER, "bias": 1}]}, "layer 1 (conv): bias is 1, not true or false"),
        ({"layers": [{**LAYER, "name": 1}]}, "layer 1 (conv): name is 1, not a text"),
        ({"layers": [{"type": "dropout", "rate": "0.5"}]}, "layer 1 (dropout): rate is '0.5', not a number"),
        ({"layers": [{"type": "batch_norm", "initial": 10**400}]}, "not a number"),
        ({"layers": [{"type": "dense", "outputs": "class"}]}, "outputs is 'class', not an integer up to 2147483648 or"),
        ({"layers": [{"type": "pool", "reduction": "min", "size": 2}]}, "reduction is 'min', not 'average' or 'max'"),
        ({"layers": [{"type": "residual", "body": 5}]}, "layer 1 (residual): body is 5, not a list of layers"),
        ({"layers": [{"type": "residual", "body": [LAYER, 5]}]}, "layer 1 (residual), body, layer 2: 5 is not a layer"),
        (
            {"layers": [LAYER, {"type": "residual", "body": [], "shortcut": [{"type": "dense", "outputs": 0.5}]}]},
            "layer 2 (residual), shortcut, layer 1 (dense): outputs is 0.5",
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
    with pytest.raises(ValueError, match=r"^has no |is no "):
        shaped_from_record(record, "mine")


def test_every_layer_says_what_comes_from_the_data():
    """A field without a default after one with a default, or one that JSON does not have, would break records."""
    for network in (*NETWORKS.values(), *MIXED_NETWORKS.values()):
        for layer, _ in shaped(network).walk():
            assert dataclasses.is_dataclass(layer) and hash(layer) is not None
