"""Shapes, names and what does not fit: one line with what and where."""

import numpy as np
import pytest
from support.mixed_networks import MIXED
from support.networks import shaped

from hvdtrain.errors import UserError
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
    LeakyRelu,
    Pool,
    Relu,
    Residual,
)
from hvdtrain.networks.registry import NETWORKS

IMAGE = (3, 10, 12)
END = (GlobalAveragePool(), Dense(CLASSES))


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
    assert [shape for found, shape in network.walk() if type(found) is type(layer)][-1] == output


def test_names_and_shapes_of_parameters():
    names = dict(shaped(MIXED, (1, 28, 28), 7).parameters())
    assert names["stem.weight"] == (8, 1, 5, 5) and "stem.bias" not in names
    assert names["conv2.weight"] == (8, 2, 3, 3) and names["conv2.bias"] == (8,)
    assert names["conv4.weight"] == (12, 8, 1, 1), "a body before its shortcut, and a name counts"
    assert names["last.weight"] == (7, 16) and names["norm1.weight"] == names["norm1.bias"] == (8,)
    statistics = dict(shaped(MIXED).statistics())
    assert statistics["norm5.running_mean"] == statistics["norm5.running_var"] == (16,)
    assert [layer.shape for layer in shaped(MIXED).dropouts] == [(8, 7, 7), (16,)]


def test_classes_and_images_come_from_the_data():
    for shape, classes in (((1, 28, 28), 10), ((3, 32, 32), 100), ((2, 40, 17), 1)):
        network = shaped("resnet20", shape, classes)
        assert dict(network.parameters())["dense1.weight"] == (classes, 64)
        assert dict(network.parameters())["conv1.weight"] == (16, shape[0], 3, 3)
    assert dict(shaped("mlp", (3, 2, 5), 4).parameters())["dense1.weight"] == (256, 30)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((Conv(8, 11), *END), "layer 1 (conv): its windows of 11x11 do not fit in images of 3x10x12 with padding 0"),
        ((Pool("max", 11), *END), "layer 1 (pool): its windows of 11x11 do not fit in images of 3x10x12"),
        ((Conv(4, 3, groups=2), *END), "layer 1 (conv): 2 groups divide neither evenly: 3 inputs, 4 outputs"),
        ((Conv(4, 3, groups=3), *END), "3 groups divide neither evenly: 3 inputs, 4 outputs"),
        ((Relu(), Dense(CLASSES)), "layer 2 (dense): it takes features, but gets images of 3x10x12: put a flatten"),
        (
            (Flatten(), Conv(4, 1), *END),
            "layer 2 (conv): it takes images (channels x height x width), but gets 360 feat",
        ),
        ((*END, GlobalAveragePool()), "layer 3 (global_average_pool): it takes images"),
        ((Residual((Conv(4, 3),)), *END), "layer 1 (residual): its body makes 4x8x10 and its shortcut 3x10x12"),
        (
            (Residual((Relu(), Residual((Conv(3, 1),), (Conv(3, 2),)))), *END),
            "layer 1 (residual), body, layer 2 (residual): its body makes 3x10x12 and its shortcut 3x9x11",
        ),
        ((Residual((), (Conv(0, 3),)), *END), "layer 1 (residual), shortcut, layer 1 (conv): outputs is 0, not at"),
        ((Flatten(), Dense(4)), "its output is 4, but the data has 10 classes; end with a dense layer"),
        ((Conv(10, 1),), "its output is 10x10x12, but the data has 10 classes"),
        ((), "its output is 3x10x12, but the data has 10 classes"),
        ((Conv(4, 0), *END), "layer 1 (conv): kernel is 0, not at least 1"),
        ((Conv(4, 1, stride=0), *END), "stride is 0, not at least 1"),
        ((Conv(4, 1, padding=-1), *END), "padding is -1, not at least 0"),
        ((Conv(4, 1, groups=0), *END), "groups is 0, not at least 1"),
        ((Flatten(), Dense(-4), Dense(CLASSES)), "layer 2 (dense): outputs is -4, not at least 1"),
        ((Pool("max", 2, padding=2), *END), "padding 2 is more than half of size 2"),
        ((Pool("mean", 2), *END), "reduction is 'mean', not average or max"),
        ((Dropout(1.0), *END), "layer 1 (dropout): rate is 1.0, not at least 0 and below 1"),
        ((Dropout(float("nan")), *END), "rate is nan"),
        ((BatchNorm(momentum=0), *END), "momentum 0 must be above 0"),
        ((BatchNorm(epsilon=0.0), *END), "epsilon 0.0 between 0 and 1"),
        ((BatchNorm(initial=float("inf")), *END), "initial is inf, not a finite number"),
        ((LeakyRelu(float("nan")), *END), "slope is nan, not a finite number"),
        ((Flatten(), Dense(1 << 30), Dense(CLASSES)), "layer 2 (dense): makes 1073741824 of 360, which is too large"),
        ((Conv(4, 1, name="a b"), *END), "the name 'a b' must be a letter, then letters, digits and _"),
        ((Conv(4, 1, name="é"), *END), "the name 'é' must be a letter"),
        ((Conv(4, 1, name="x" * 65), *END), "must be a letter"),
        ((Conv(4, 1, name="a"), BatchNorm(name="a"), *END), "layer 2 (batch_norm): the name a is taken by another"),
        ((Conv(4, 1, name="conv2"), Conv(4, 1), *END), "layer 2 (conv): the name conv2 is taken by another layer"),
        ((Gelu, *END), "layer 1: <class 'hvdtrain.networks.layers.Gelu'> is not a layer"),
    ],
)
def test_what_does_not_fit(layers, problem):
    with pytest.raises(UserError) as raised:
        Network(layers).for_data(IMAGE, 10, "net.toml")
    text = str(raised.value)
    assert text.startswith("--model net.toml: ") and problem in text and "\n" not in text
    assert raised.value.remedy and raised.value.exit_status == 2


@pytest.mark.parametrize("model", ["lenet", "cifar_lenet"])
def test_a_network_of_one_shape_names_both(model):
    message = f"--model {model}: takes images of .*, but the data's are 3x10x12; choose another network, or resize"
    with pytest.raises(UserError, match=message):
        NETWORKS[model].for_data(IMAGE, 10, model)


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
