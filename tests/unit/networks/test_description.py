"""What follows from the description of a network."""

import pytest

from hvdtrain.networks.description import Conv, Dense, Flatten, Network, Pool, Relu
from hvdtrain.networks.registry import NETWORKS


@pytest.mark.parametrize(("name", "used"), [("lenet", (26, 26)), ("cifar_lenet", (32, 32))])
def test_used_pixels_of_the_networks(name, used):
    assert NETWORKS[name].used_pixels == used


def test_used_pixels_of_an_image_that_is_not_square():
    layers = (Conv("conv", 3, 4, 2), Relu(), Pool("max", 3), Flatten(), Dense("dense", 4 * 2 * 3, 5))
    assert Network((3, 8, 12), 5, layers).used_pixels == (7, 10)
