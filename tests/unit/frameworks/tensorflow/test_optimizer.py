"""fp16's loss scale in TensorFlow."""

import pytest

from hvdtrain.frameworks.batches import scale_of_rows
from hvdtrain.frameworks.tensorflow.optimizer import LossScale


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 3), (2, 16)])
def test_a_loss_scale_follows_the_number_of_ranks(before, after):
    """A row weighs more on one of several ranks; fp16 then overflows at the same steps as in one process."""
    first, second = LossScale(True, before), LossScale(True, after)
    first.value.assign(1024.0)
    first.good_steps.assign(7)
    second.load(first.state())
    assert float(second.value) == 1024 * scale_of_rows(before) / scale_of_rows(after)
    assert second.state() == first.state()
