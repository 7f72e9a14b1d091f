"""What follows from the description of a network."""

import pytest
from support.networks import shaped

from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Conv, Dense, Flatten, Pool, Relu


@pytest.mark.parametrize(("name", "used"), [("lenet", (26, 26)), ("cifar_lenet", (32, 32))])
def test_used_pixels_of_the_networks(name, used):
    assert shaped(name).used_pixels == used


def test_used_pixels_of_an_image_that_is_not_square():
    network = Network((Conv(4, 2), Relu(), Pool("max", 3), Flatten(), Dense(CLASSES)))
    assert shaped(network, (3, 8, 12)).used_pixels == (7, 10)
