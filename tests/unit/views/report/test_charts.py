"""Charts: what is drawn of few and of many runs."""

import pytest
from support.report import learning, make_run

from hvdtrain.runs.search import finished_runs
from hvdtrain.views.report import charts
from hvdtrain.views.report.comparison import make_rows


def rows(folder):
    return make_rows(finished_runs([folder])[0])


def lanes(folder, title):
    (chart,) = (chart for chart in charts.lane_charts(rows(folder)) if chart.title.startswith(title))
    return chart


def test_of_thirty_rows_as_many_are_drawn_as_there_are_different_lines(tmp_path):
    for number in range(30):
        make_run(tmp_path / str(number), lr=0.01 + number, metrics=learning(level=0.3 + number / 100))
    (group,) = charts.line_charts(rows(tmp_path))
    loss, _, accuracy = group["charts"]
    assert [line["slot"] for line in loss["lines"]] == list(range(24)) and len(
        {line["name"] for line in loss["lines"]}
    ) == 24
    assert group["title"] == "Learning curves (24 of 30 rows)"
    assert (accuracy["title"], accuracy["least"]) == ("test accuracy", 0.1)


def test_scaling_is_drawn_from_its_base(tmp_path):
    for ranks, speed in ((1, 1000.0), (4, 3000.0), (2, 1800.0)):
        strategy = "single" if ranks == 1 else "ring"
        make_run(tmp_path / str(ranks), ranks=ranks, strategy=strategy, images_per_s=speed)
    (group,) = charts.line_charts(rows(tmp_path))
    assert group["title"] == "Scaling from torch single, 1 × 1"
    (chart,) = group["charts"]
    ideal, ring = chart["lines"]
    assert (ideal["x"], ideal["y"]) == ([1, 4], [1000, 4000])
    assert (ring["name"], ring["x"], ring["y"]) == ("ring, strong", [1, 2, 4], [1000, 1800, 3000])


def test_scores_have_the_interval_of_chance_and_whiskers(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.625)):
        make_run(tmp_path / str(seed), seed=seed, accuracy=accuracy, test_rows=100)
    chart = lanes(tmp_path, "test accuracy")
    (lane,) = chart.lanes
    chance, whisker, point = lane.bars
    assert [bar.kind for bar in lane.bars] == ["chance", "whisker", "point"] and lane.text == "0.5625"
    assert chance.start < whisker.start < point.start < whisker.start + whisker.width < chance.start + chance.width
    assert "95 % interval of chance" in chart.title


def test_shares_of_a_step_say_what_is_not_known(tmp_path):
    make_run(tmp_path / "known", strategy="ring", ranks=2, metrics=learning(ranks=2, slow=1))
    make_run(tmp_path / "unknown", strategy="ddp", ranks=2, metrics=learning(ranks=2, communicate=False))
    unknown, known = lanes(tmp_path, "Shares of a step").lanes
    assert unknown.text == "96 / ? / 4"
    assert [(bar.kind, bar.width) for bar in known.bars] == [
        ("compute", pytest.approx(3 / 4.3)),
        ("communicate", pytest.approx(1.2 / 4.3)),
        ("data", pytest.approx(0.1 / 4.3)),
    ]
    assert known.bars[2].start == pytest.approx(4.2 / 4.3)
