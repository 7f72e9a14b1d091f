"""Initial weights have the documented distributions; dropout's masks are a function of (seed, step, layer, row)."""

import itertools

import numpy as np
import pytest
from support.networks import LENET, shaped

from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Dense, Dropout, Flatten
from hvdtrain.networks.random_numbers import draw_masks, initial_weights

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


def test_a_rate_of_zero_has_no_mask():
    assert masks(0, 0.0) == [] and len(masks(0.0, 0.5)) == 1


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
