"""The axes of accuracies: small changes look small."""

import pytest

from hvdtrain.runs.plots import MIN_ACCURACY_SPAN, widened


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.969, 0.9765, (0.9, 1.0)), (0.5, 0.5, (0.45, 0.55)), (0.0, 0.01, (0.0, 0.1)), (0.2, 0.9, (0.2, 0.9)),
        (96.9, 97.65, (96.9, 97.65)),
    ],
)  # fmt: skip
def test_small_changes_of_an_accuracy_look_small(low, high, expected):
    assert widened(low, high) == pytest.approx(expected, abs=0.03)
    bottom, top = widened(low, high)
    assert bottom <= low and high <= top and (high > 1 or top - bottom >= MIN_ACCURACY_SPAN - 1e-12)
