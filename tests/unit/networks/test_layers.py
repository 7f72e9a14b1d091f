"""Networks: shapes, names, sizes, what does not fit, initial weights and masks of dropout."""

import itertools

import numpy as np
import pytest
from support.errors import refused
from support.mixed_networks import MIXED
from support.networks import LENET, shaped

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
from hvdtrain.networks.random_numbers import draw_masks, initial_weights
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
            "layer 1 (residual), shortcut, layer 1 (conv): outputs: Expected `int` >= 1",
        ),
        ((Flatten(), Dense(4)), "its output is 4, but the data has 10 classes; end with a dense layer"),
        ((), "its output is 3x10x12, but the data has 10 classes"),
        ((Conv(4, 0), *END), "layer 1 (conv): kernel: Expected `int` >= 1"),
        ((Flatten(), Dense(-4), Dense(CLASSES)), "layer 2 (dense): outputs: Expected `int` >= 1"),
        ((Pool("max", 2, padding=2), *END), "padding 2 is more than half of size 2"),
        ((Pool("mean", 2), *END), "reduction: Invalid enum value 'mean'"),
        ((Dropout(1.0), *END), "layer 1 (dropout): rate: Expected `float` < 1.0"),
        ((BatchNorm(momentum=0), *END), "momentum: Expected `float` > 0.0"),
        ((BatchNorm(initial=float("inf")), *END), "initial: Expected `float`"),
        ((LeakyRelu(float("nan")), *END), "slope: Expected `float`"),
        ((Flatten(), Dense(1 << 30), Dense(CLASSES)), "layer 2 (dense): makes 1073741824 of 360, which is too large"),
        ((Conv(4, 1, name="a b"), *END), "the name 'a b' must be a letter, then letters, digits and _"),
        ((Conv(4, 1, name="a"), BatchNorm(name="a"), *END), "layer 2 (batch_norm): the name a is taken by another"),
        ((Gelu, *END), "layer 1: <class 'hvdtrain.networks.layers.Gelu'> is not a layer"),
    ],
)
def test_what_does_not_fit(layers, problem):
    text = str(refused(lambda: Network(layers).for_data(IMAGE, 10, "net.toml"), problem))
    assert text.startswith("--model net.toml: ")


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
