"""The plot of a run: it accepts any name and any numbers, and small changes of accuracies look small."""

from __future__ import annotations

import warnings

import pytest

from hvdtrain.runs.plots import MIN_ACCURACY_SPAN, plot_metrics, widened

LINE = '{"kind": "train", "step": 1, "epoch": 1, "loss": 2}\n'


def test_one_point_is_not_drawn(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(LINE)
    assert plot_metrics(tmp_path, "lenet") is None
    assert not (tmp_path / "metrics.png").exists()


@pytest.mark.parametrize("name", ["a$b$c", r"$\frac$ $x^$", "a_b|<c>\n\x1b[31m", "名" * 200, "\udce4"])
def test_names_are_drawn_as_they_are(tmp_path, name):
    (tmp_path / "metrics.jsonl").write_text(LINE + LINE.replace("1", "2"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot_metrics(tmp_path, f"lenet on {name}").stat().st_size > 1000


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
