"""Which parameters have no weight decay."""

import pytest

from hvdtrain.errors import UserError
from hvdtrain.frameworks.decay import without_decay

NAMES = ["conv1.weight", "conv1.bias", "norm1.gamma", "dense1.weight", "dense1.bias"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ((), set()),
        (("*.bias",), {"conv1.bias", "dense1.bias"}),
        (("*.bias", "norm*"), {"conv1.bias", "dense1.bias", "norm1.gamma"}),
        (("conv?.[wb]*", "conv1.bias"), {"conv1.weight", "conv1.bias"}),
        (("*",), set(NAMES)),
    ],
)
def test_patterns_choose_names(patterns, expected):
    assert without_decay(patterns, NAMES) == expected


@pytest.mark.parametrize("pattern", ["bias", "CONV*", "", "bn*"])
def test_a_pattern_that_matches_nothing_is_an_error_with_names(pattern):
    with pytest.raises(UserError, match=r"matches no trained parameter; they are conv1\.weight, conv1\.bias, norm1"):
        without_decay(["*.bias", pattern], NAMES)


def test_the_message_has_a_few_names_only():
    with pytest.raises(UserError, match=r"n0, n1, n2, n3, n4, n5, \.\.\.;"):
        without_decay(["x"], [f"n{number}" for number in range(20)])
