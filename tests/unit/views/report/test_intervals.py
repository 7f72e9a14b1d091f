"""The interval that chance gives."""

import pytest

from hvdtrain.views.report.intervals import Interval, wilson


def test_wilson_interval_is_that_of_the_literature():
    """Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17, 1998, table I."""
    for correct, rows, expected in ((81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)),
                                    (1, 29, (0.0061, 0.1718)), (29, 29, (0.8830, 1.0))):  # fmt: skip
        assert wilson(correct / rows, rows) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("share", "rows"), [(None, 10), (0.5, None), (0.5, 0), (1.5, 10), (-0.1, 10)])
def test_no_interval_without_a_share_and_rows(share, rows):
    assert wilson(share, rows) is None


def test_intervals_that_touch_overlap():
    assert Interval(0, 1).overlaps(Interval(1, 2)) and Interval(1, 2).overlaps(Interval(0, 1))
    assert not Interval(0, 1).overlaps(Interval(1.1, 2)) and not Interval(1.1, 2).overlaps(Interval(0, 1))
