"""Ranges of a search: their forms, the numbers that are drawn from them, and what is rejected."""

import pytest

from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.ranges import Range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log:1e-4:1e-1", Range("log", 1e-4, 0.1)),
        ("float:0:0.5:0.1", Range("float", 0.0, 0.5, 0.1)),
        ("int:8:64:8", Range("int", 8.0, 64.0, 8.0)),
        ("logint:1:512", Range("logint", 1.0, 512.0)),
    ],
)
def test_forms(text, expected):
    found = Range.parse(text, "--set x")
    assert found == expected
    assert Range.parse(str(found), "") == expected


@pytest.mark.parametrize("text", ["0.1", "adam", "max:accuracy", "./a:b", "Log:1:2", "http://host", ""])
def test_other_texts_are_values(text):
    assert Range.parse(text, "--set x") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("log:0:1", "no logarithm"),
        ("log:1e-4", "no range of numbers"),
        ("float:1:1", "ends at or below its beginning"),
        ("float:0:inf", "not finite"),
        ("int:1.5:3", "no range of integers"),
        ("int:1:3:0", "a step that is not possible"),
        ("int:1:3:1:1", "a step that is not possible"),
        ("log:1:2:1", "a step that is not possible"),
        ("float:a:b", "no range of numbers"),
    ],
)
def test_impossible_ranges(text, reason):
    with pytest.raises(UserError, match=reason) as raised:
        Range.parse(text, "--set lr")
    assert raised.value.reason.startswith("--set lr: ") and "log:1e-4:1e-1" in raised.value.remedy


def test_drawn_numbers_are_short_and_within_the_range():
    drawn = Range("log", 1e-4, 0.123456789)
    assert drawn.text(0.0012345678) == "0.00123457"
    assert drawn.text(0.123456789) == "0.123456789", "rounded it would be above the range"
    assert Range("logint", 4, 9).text(7.0) == "7"
    assert drawn.ends == ("0.0001", "0.123456789")
