"""The plot of a run accepts any name."""

from __future__ import annotations

import warnings

import pytest

from hvdtrain.runs.plots import plot_metrics


@pytest.mark.parametrize("name", ["a$b$c", r"$\frac$ $x^$", "a_b|<c>\n\x1b[31m", "名" * 200, "\udce4"])
def test_names_are_drawn_as_they_are(tmp_path, name):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "epoch": 1, "loss": 2}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot_metrics(tmp_path, f"lenet on {name}").stat().st_size > 1000
