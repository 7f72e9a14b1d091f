"""--ema: the moving average of weights."""

import numpy as np
import pytest
from support.averages import assert_averages
from torch import nn

from hvdtrain.frameworks.torch.averages import Averages
from hvdtrain.frameworks.torch.network import trained_parameters


@pytest.mark.needs("torch")
def test_averages_follow_the_weights():
    assert_averages("torch")


class Tied(nn.Module):
    """A module in which one parameter has two names, and one is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)


@pytest.mark.needs("torch")
def test_a_tied_parameter_has_its_average_under_each_name():
    model = Tied()
    averages = Averages(0.9, model, trained_parameters(model))
    averages.update(0)
    arrays = averages.arrays()
    assert set(arrays) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    again = Averages(0.9, model, trained_parameters(model))
    again.load(arrays)
    np.testing.assert_array_equal(again.arrays()["second.weight"], model.first.weight.detach().numpy())
