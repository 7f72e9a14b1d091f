"""Outputs of the replicas of a model on several devices, as one."""

import collections

import pytest
import torch

from hvdtrain.frameworks.styles.torch_devices import _gathered

Named = collections.namedtuple("Named", "x")


class Outputs(dict):
    """As models of libraries return them."""


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        (dict, lambda found: found["x"]),
        (Outputs, lambda found: found["x"]),
        (collections.UserDict, lambda found: found["x"]),
        (Named, lambda found: found.x),
        (lambda x: [(x,)], lambda found: found[0][0]),
    ],
)
def test_outputs_of_all_replicas_are_joined(made, taken):
    found = _gathered(made(x=torch.ones(2)), made(x=torch.zeros(3)))
    assert taken(found).tolist() == [1, 1, 0, 0, 0]
