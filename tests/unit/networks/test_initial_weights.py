"""Initial weights have the documented distributions, and depend on the seed."""

import numpy as np
import pytest
from support.networks import LENET

from hvdtrain.networks.initial_weights import initial_weights


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
