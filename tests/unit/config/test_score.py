"""The score of a run: which figure it is, and in which direction it is better."""

import math

import pytest

from hvdtrain.config.score import score_of


@pytest.mark.parametrize(
    ("loss", "metrics", "choice", "expected"),
    [
        (0.5, {"accuracy": 0.75, "f1": 0.6}, "auto", ("accuracy", 0.75, False)),
        (0.5, {"f1": 0.6}, "auto", ("loss", 0.5, True)),
        (0.5, {"f1": 0.6, "accuracy": 0.75}, "max:f1", ("f1", 0.6, False)),
        (0.5, {"perplexity": 12.0}, "min:perplexity", ("perplexity", 12.0, True)),
        (0.5, {"accuracy": 0.75}, "min:loss", ("loss", 0.5, True)),
        (0.5, {"accuracy": 0.75}, "min:missing", ("accuracy", 0.75, False)),
        (0.5, {"a:b c": 0.75}, "max:a:b c", ("a:b c", 0.75, False)),
        (None, {}, "auto", None),
        (math.nan, {}, "auto", None),
        (0.5, {"accuracy": math.nan}, "auto", None),
    ],
)
def test_which_figure_is_the_score(loss, metrics, choice, expected):
    score = score_of(loss, metrics, choice)
    assert (score and score[:3]) == expected
    assert not score or score.choice == (choice if "missing" not in choice and choice != "auto" else "")


def test_a_better_value_is_before_a_worse_one():
    values = [-5.0, -1e-3, 0.0, 1e-6, 0.1, 3.0, 1e9]
    for choice in ("", "min:x", "max:x", "min:loss"):
        orders = [score_of(value, {"x": value}, choice).order for value in values]
        assert orders == sorted(orders, reverse=choice != "max:x")
        assert min(orders) > 0 and len(set(orders)) == len(orders)
