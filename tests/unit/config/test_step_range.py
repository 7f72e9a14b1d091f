"""Ranges of steps, and the options that go with them."""

import pytest

from hvdtrain.config.options import RuntimeOptions
from hvdtrain.config.step_range import StepRange
from hvdtrain.errors import UserError


def test_range_ends_before_its_last_number():
    found = StepRange.parse("100:110")
    assert (found.first, found.last, len(found), str(found)) == (100, 110, 10, "100:110")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "is not FIRST:LAST"),
        ("a:b", "is not FIRST:LAST"),
        ("-1:5", "is not FIRST:LAST"),
        (":5", "is not FIRST:LAST"),
        ("١:٥", "is not FIRST:LAST"),
        ("1:2\n", "is not FIRST:LAST"),
        ("1:" + "9" * 5000, "is not FIRST:LAST"),
        ("7:7", "has no step"),
        ("9:7", "has no step"),
        ("0:1001", "has 1001 steps"),
    ],
)
def test_other_texts_are_errors(text, reason):
    with pytest.raises(UserError) as error:
        RuntimeOptions(timeline=text)
    assert error.value.reason.startswith(f"--timeline {text}: {reason}")


def test_options_that_do_not_go_together():
    with pytest.raises(UserError, match="--framework-profiler: it needs to know for which steps"):
        RuntimeOptions(framework_profiler=True)
    assert RuntimeOptions(timeline="1:2", framework_profiler=True).timeline == "1:2"
