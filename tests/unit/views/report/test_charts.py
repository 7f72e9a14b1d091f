"""Charts: what is drawn of few and of many runs."""

import pytest
from support.report import learning, make_run

from hvdtrain.runs.plots import drawing
from hvdtrain.runs.search import finished_runs
from hvdtrain.views.report import charts, lanes
from hvdtrain.views.report.comparison import make_rows


@pytest.fixture(autouse=True)
def style():
    with drawing():
        yield


def rows(folder):
    return make_rows(finished_runs([folder])[0])


def legend(figure):
    return [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]


def test_of_thirty_rows_as_many_are_drawn_as_there_are_different_lines(tmp_path):
    for number in range(30):
        make_run(tmp_path / str(number), lr=0.01 + number, metrics=learning(level=0.3 + number / 100))
    figure = charts.draw_curves(rows(tmp_path))
    drawn = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(legend(figure)) == len(figure.axes[0].lines) == len(drawn) == charts.MAX_ROWS == 18
    assert figure.axes[-1].get_xlabel() == "epoch (18 of 30 rows)"


def test_scores_have_the_interval_of_chance_and_whiskers(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.625)):
        make_run(tmp_path / str(seed), seed=seed, accuracy=accuracy, test_rows=100)
    figure = lanes.draw_score(rows(tmp_path))
    (axis,) = figure.axes
    (interval,) = axis.patches
    assert interval.get_x() < 0.5 and interval.get_x() + interval.get_width() > 0.625
    assert [list(line.get_xdata()) for line in axis.lines if line.get_marker() == "o"] == [[0.5625]]
    assert "95 % interval of chance" in figure.get_supxlabel() and legend(figure) == ["PyTorch"]


def test_ranks_of_the_run_with_a_straggler_come_first(tmp_path):
    make_run(tmp_path / "even", ranks=2, strategy="ring", metrics=learning(ranks=2))
    make_run(tmp_path / "one slow", ranks=4, strategy="ring", metrics=learning(ranks=4, slow=2))
    make_run(tmp_path / "unknown", ranks=2, strategy="ddp", metrics=learning(ranks=2, communicate=False))
    make_run(tmp_path / "alone", metrics=learning())
    figure = lanes.draw_ranks([row for row in rows(tmp_path) if lanes.has_ranks(row)])
    (axis,) = figure.axes
    names = [text.get_text() for text in axis.texts if "%" not in text.get_text() and text.get_text()]
    assert names == ["one slow", "unknown", "even"]
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"rank {n}" for n in (0, 1, 2, 3, 0, 1, 0, 1)]
    assert legend(figure) == list(lanes.STEP_COLORS)
    computing, _, communicating, _ = ([bar.get_width() for bar in container] for container in axis.containers)
    assert computing[:4] == pytest.approx([1 / 2.15, 1 / 2.15, 2 / 2.15, 1 / 2.15])
    assert communicating[2] == min(communicating[:4])


def test_of_many_ranks_the_extremes_are_drawn(tmp_path):
    for number in range(9):
        make_run(tmp_path / str(number), ranks=64, seed=number, strategy="ring", metrics=learning(ranks=64, slow=50))
    figure = lanes.draw_ranks(rows(tmp_path))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == lanes.MAX_LANES and labels.count("rank 50") == 5
    assert "the 5 of 9 runs" in figure.get_supxlabel() and "the 8 ranks with" in figure.get_supxlabel()
