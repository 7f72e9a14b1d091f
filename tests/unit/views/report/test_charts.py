"""Charts: what is drawn of few and of many runs."""

import pytest
from support.report import learning, make_run

from hvdtrain.runs.plots import drawing
from hvdtrain.runs.search import finished_runs
from hvdtrain.views.report.charts import FRAMEWORK_COLORS, bars, lines
from hvdtrain.views.report.comparison import make_rows


@pytest.fixture(autouse=True)
def style():
    with drawing():
        yield


def rows(folder):
    return make_rows(finished_runs([folder])[0])


def legend(figure):
    return [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]


def test_curves_of_one_run_have_the_interval_of_each_accuracy(tmp_path):
    make_run(tmp_path / "one", metrics=learning(), test_rows=100)
    figure = lines.draw_curves(rows(tmp_path))
    assert [axis.get_ylabel() for axis in figure.axes] == ["training loss", "test loss", "test accuracy"]
    assert [len(axis.lines[0].get_xdata()) for axis in figure.axes] == [12, 3, 3]
    assert legend(figure) == ["torch single, 1 × 1"]
    (band,) = figure.axes[2].collections
    ends = band.get_datalim(figure.axes[2].transData)
    assert ends.height > 0.1  # of 100 rows
    assert not figure.axes[1].collections


def test_curves_of_thirty_rows_have_colors_of_frameworks_and_name_the_extremes(tmp_path):
    for number in range(30):
        level = 0.3 + (number * 7 % 30) / 100
        framework = ("torch", "mxnet")[number % 2]
        make_run(tmp_path / str(number), lr=0.01 + number, framework=framework, metrics=learning(level=level))
    figure = lines.draw_curves(rows(tmp_path))
    names = legend(figure)
    assert names[:2] == ["MXNet", "PyTorch"] and len(names) == 4
    assert names[2] == "lowest loss at the end: torch single, 1 × 1"
    assert names[3].startswith("highest loss at the end: mxnet single, 1 × 1, lr 17.01")
    colors = {line.get_color() for line in figure.axes[0].lines[:30]}
    assert colors == {FRAMEWORK_COLORS["torch"], FRAMEWORK_COLORS["mxnet"]}
    assert len(figure.axes[0].lines) == 32


def test_long_curves_are_thinned_and_end_where_they_end():
    curve = [(float(number), float(number % 2)) for number in range(10_000)]
    short = lines.thinned(curve, 300)
    assert len(short) <= 300 and short[-1] == curve[-1]
    assert all(value == pytest.approx(0.5, abs=0.05) for _, value in short[:-2])
    assert lines.thinned(curve[:300], 300) == curve[:300]


def test_ranks_of_the_run_with_a_straggler_come_first(tmp_path):
    make_run(tmp_path / "even", ranks=2, strategy="ring", metrics=learning(ranks=2))
    make_run(tmp_path / "one slow", ranks=4, strategy="ring", metrics=learning(ranks=4, slow=2))
    make_run(tmp_path / "unknown", ranks=2, strategy="ddp", metrics=learning(ranks=2, communicate=False))
    make_run(tmp_path / "alone", metrics=learning())
    figure = bars.draw_ranks([row for row in rows(tmp_path) if bars.has_ranks(row)])
    (axis,) = figure.axes
    names = [text.get_text() for text in axis.texts if "%" not in text.get_text() and text.get_text()]
    assert names == ["one slow", "unknown", "even"]
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"rank {n}" for n in (0, 1, 2, 3, 0, 1, 0, 1)]
    assert legend(figure) == list(bars.STEP_COLORS)
    computing, _, communicating, _ = ([bar.get_width() for bar in container] for container in axis.containers)
    assert computing[:4] == pytest.approx([1 / 2.15, 1 / 2.15, 2 / 2.15, 1 / 2.15])
    assert communicating[2] == min(communicating[:4])


def test_of_many_ranks_the_extremes_are_drawn(tmp_path):
    for number in range(9):
        make_run(tmp_path / str(number), ranks=64, seed=number, strategy="ring", metrics=learning(ranks=64, slow=50))
    figure = bars.draw_ranks(rows(tmp_path))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == bars.MAX_LANES and labels.count("rank 50") == 5
    assert "the 5 of 9 runs" in figure.get_supxlabel() and "the 8 ranks with" in figure.get_supxlabel()
