"""Charts: what is drawn of few and of many runs."""

import pytest
from support.report import learning, make_run

from hvdtrain.runs.plots import drawing
from hvdtrain.runs.search import finished_runs
from hvdtrain.views.report import charts
from hvdtrain.views.report.comparison import make_rows


@pytest.fixture(autouse=True)
def style():
    with drawing():
        yield


def rows(folder):
    return make_rows(finished_runs([folder])[0])


def legend(figure):
    return [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]


def test_curves_of_one_run_have_a_panel_for_each_figure(tmp_path):
    make_run(tmp_path / "one", metrics=learning(), test_rows=100)
    figure = charts.draw_curves(rows(tmp_path))
    assert [axis.get_ylabel() for axis in figure.axes] == ["training loss", "test loss", "test accuracy"]
    assert [len(axis.lines[0].get_xdata()) for axis in figure.axes] == [12, 3, 3]
    assert legend(figure) == ["torch single, 1 × 1"]


def test_of_thirty_rows_as_many_are_drawn_as_there_are_different_lines(tmp_path):
    for number in range(30):
        make_run(tmp_path / str(number), lr=0.01 + number, metrics=learning(level=0.3 + number / 100))
    figure = charts.draw_curves(rows(tmp_path))
    drawn = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(legend(figure)) == len(figure.axes[0].lines) == len(drawn) == charts.MAX_ROWS == 18
    assert figure.axes[-1].get_xlabel() == "epoch (18 of 30 rows)"
