"""--ema: the moving average of weights."""

import pytest
from support.averages import assert_averages


@pytest.mark.needs("mxnet")
def test_averages_follow_the_weights():
    assert_averages("mxnet")
