"""Rows of the report: which runs are repetitions, and what the table shows of them."""

import re
from dataclasses import astuple

import pytest
from support.networks import shaped
from support.report import make_run, number, report_of, rows, table, write

from hvdtrain.networks.record import shaped_to_record
from hvdtrain.views.report.pages import markdown_page
from hvdtrain.views.report.rows import wilson


def step_times(compute, communicate, data):
    parts = {"compute_s": compute, "communicate_s": communicate, "data_s": data}
    times = {name: None if seconds is None else [seconds] for name, seconds in parts.items()}
    return {"kind": "train", "step": 1, **times}


def test_repetitions_are_one_row_with_median_minimum_and_maximum(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # pytest-xdist gives its workers 80
    for name, speed, seed in (("a", 900.0, 0), ("b", 1100.0, 1), ("c", 1000.0, 0)):
        given = {"epoch_s": speed / 100, "peak_rss_mb": speed / 2, "accuracy": speed / 2000, "seed": seed}
        given |= {"step_s": 25 / speed, "cores": 2, "flops_per_image": 1e7}
        given["metrics"] = [step_times(0.5, 0.25, 0.25)] if name != "c" else []
        make_run(tmp_path / "runs" / name, images_per_s=speed, framework="mxnet", **given)
    (row,) = table(write(tmp_path, tmp_path / "runs"))
    expected = {
        "runs": 3, "images_per_s_median": 1000, "images_per_s_low": 900, "images_per_s_high": 1100,
        "epoch_s_median": 10, "peak_rss_mb_high": 550, "score_median": 0.5, "score_low": 0.45, "score_high": 0.55,
        "compute_share": 0.5, "communicate_share": 0.25, "data_share": 0.25, "step_s_median": 0.025,
        "images_per_core_s_median": 500, "gflops_per_core_median": 5, "speedup": 1, "efficiency": 1,
    }  # fmt: skip
    assert {name: number(row, name) for name in expected} == pytest.approx(expected)
    page = (tmp_path / "out" / "report.md").read_text()
    assert (
        "| single | 1 × 1 | 1,000 (900 to 1,100, 3 runs) | base | "
        "0.5000 (0.4500 to 0.5500; 95 %: 0.490 to 0.510) | — | ab |\n"
    ) in page
    assert "| single | 1 × 1 | 500 | 5.0 | 10.00 | 25.0 ms: 50% / 25% / 25% | 550 | 0.3000 |\n" in page
    assert "- seed: differs: 0 (2 runs), 1 (1 run)\n" in page
    output = capsys.readouterr().out.splitlines()
    (shown,) = (line for line in output if line.startswith("single"))
    assert re.split("  +", shown)[:4] == ["single", "1 × 1", "1,000 (900 to 1,100, 3 runs)", "base"]
    assert output[-1] == f"written to {tmp_path / 'out'}: report.md, report.csv, report.html"


def test_communication_that_cannot_be_told_is_unknown(tmp_path):
    """Of a strategy that does not know it, and of several devices in one process."""
    make_run(tmp_path / "ddp", strategy="ddp", ranks=2, step_s=0.02, metrics=[step_times(0.9, None, 0.1)])
    make_run(tmp_path / "manual", strategy="manual", devices=2, step_s=0.02, metrics=[step_times(0.8, 0.0, 0.2)])
    make_run(tmp_path / "short", framework="mxnet", without=("step_s", "cores"), metrics=[step_times(0.5, 0.25, 0.25)])
    text = markdown_page(report_of(tmp_path))
    assert "| ddp | 2 × 1 | — | — | 2.00 | 20.0 ms: 90% / unknown / 10% | 400 |" in text
    assert "| manual | 1 × 2 | — | — | 2.00 | 20.0 ms: 80% / unknown / 20% | 400 |" in text
    assert "| single | 1 × 1 | — | — | 2.00 | 50% / 25% / 25% |" in text
    assert [row["communicate_share"] for row in rows(tmp_path)] == ["0.25", "", ""]


HOROVOD = {"strategy": "horovod", "ranks": 2}
SAME = {
    "controllers": ([{**HOROVOD, "controller": name} for name in ("Gloo", "MPI", "MPI")],
                    {"horovod over Gloo": "1", "horovod over MPI": "2"}),
    "styles and stores": (
        [*({"framework": "mxnet", "strategy": strategy} for strategy in ("single", "single", "module-single")),
         {"framework": "mxnet", "strategy": "kvstore-dist", "ranks": 2}],
        {"single": "2", "module-single": "1", "kvstore-dist": "1"}),
    "seeds": ([{}, {"seed": 1}], {"single": "2"}),
}  # fmt: skip
"""Runs, and how many of them are in the rows of these names."""


@pytest.mark.parametrize(("runs", "expected"), SAME.values(), ids=SAME)
def test_which_runs_are_repetitions(tmp_path, runs, expected):
    for place, given in enumerate(runs):
        make_run(tmp_path / str(place), **given)
    text = markdown_page(report_of(tmp_path))
    assert [row["runs"] for row in rows(tmp_path)] == [*expected.values()]
    assert all(f"| {name} |" in text for name in expected)


def test_runs_of_one_model_with_other_layers_are_no_repetitions(tmp_path):
    """Nor a base of each other, or a reference."""
    other = shaped_to_record(shaped("cifar_lenet"))
    make_run(tmp_path / "a", moved=0.0)
    make_run(tmp_path / "b", moved=0.0, seed=1)
    make_run(tmp_path / "c", network=other)
    make_run(tmp_path / "d", network=other, moved=0.5, ranks=2, strategy="ring")
    make_run(tmp_path / "e", model="resnet20", network=shaped_to_record(shaped("resnet20")))
    made = rows(tmp_path)
    found = {(row["strategy"], row["settings"].split(" ")[0], row["runs"]) for row in made}
    assert found == {("single", "", "2"), ("single", "layers", "1"), ("ring", "layers", "1"), ("single", "model", "1")}
    (ring,) = (row for row in made if row["strategy"] == "ring")
    assert ring["max_parameter_difference"] == ""
    assert ring["scaling_base"] == f"torch single, 1 × 1, {ring['settings']}"


def test_options_in_which_runs_differ_are_columns(tmp_path):
    """Of a sweep, and of a task's arguments; what is no option is in a note; names of rows in charts have all."""
    for name, given in {"a": {}, "b": {"lr": 0.1}, "c": {"lr": 0.2, "clip_norm": 1.0}}.items():
        make_run(tmp_path / "runs" / name, **given)
    make_run(tmp_path / "runs" / "d", host={"processor": "Z80"})
    report = report_of(tmp_path / "runs")
    assert report.options == ["lr", "clip_norm"]
    text = markdown_page(report)
    assert "| strategy | settings that differ from most runs | ranks × devices | lr | clip-norm |" in text
    assert (
        "| single |  | 1 × 1 | 0.2 | 1.0 |" in text and "| single | machine Z80, 4 cores | 1 × 1 | 0.05 | 0.0 |" in text
    )
    assert "- torch single, 1 × 1, lr 0.2, clip-norm 1.0: c," in text
    found = rows(tmp_path / "runs")
    assert sorted(row["option:lr"] for row in found) == ["0.05", "0.05", "0.1", "0.2"]
    for width in (8, 16, None):
        options = {} if width is None else {"width": width}
        make_run(tmp_path / "tasks" / f"width-{width}", network={"task": "lm.py:Task", "options": options})
    task = report_of(tmp_path / "tasks")
    assert task.options == ["arg.width"]
    assert sorted(row["option:arg.width"] for row in rows(tmp_path / "tasks")) == ["", "16", "8"]


def test_runs_have_their_names_and_dates(tmp_path):
    runs = tmp_path / "runs"
    make_run(runs / "first", started="2026-02-01T10:20:30+0100")
    make_run(runs / "second", seed=1, started="2026-02-03T11:00:00+0100")
    make_run(tmp_path / "others" / "second", ranks=2, strategy="ring", started="yesterday")
    folder = write(tmp_path, runs, tmp_path / "others")
    text, page = ((folder / name).read_text() for name in ("report.md", "report.html"))
    assert "- torch single, 1 × 1: first, 2026-02-01 10:20; runs/second, 2026-02-03 11:00\n" in text
    assert "- torch ring, 2 × 1: others/second, yesterday\n" in text
    assert "<dd>first, 2026-02-01 10:20<br>runs/second, 2026-02-03 11:00</dd>" in page
    assert "3 runs in 2 rows, started 2026-02-01 10:20 to yesterday." in text
    assert table(folder)[0]["started"] == "2026-02-01T10:20:30+0100 2026-02-03T11:00:00+0100"


def test_the_fastest_row_of_each_framework_is_marked(tmp_path, capsys):
    for framework, speed in (("torch", 1000.0), ("mxnet", 2000.0)):
        make_run(tmp_path / framework, framework=framework, images_per_s=speed)
        make_run(tmp_path / f"{framework}-2", framework=framework, images_per_s=1.5 * speed, ranks=2, strategy="ring")
    make_run(tmp_path / "tensorflow", framework="tensorflow")
    folder = write(tmp_path, tmp_path)
    shown, (text, page) = capsys.readouterr().out, ((folder / f"report.{end}").read_text() for end in ("md", "html"))
    assert re.findall(r"^(\S+) .* \* ([\d,]+) ", shown, re.M) == [("ring", "3,000"), ("ring", "1,500")]
    assert "* most images/s of its table" in shown
    assert re.findall(r"^\| (\S+) .*\*\*([\d,]+) ", text, re.M) == [("ring", "3,000"), ("ring", "1,500")]
    assert re.findall(r"^### (.*)$", text, re.M) == ["MXNet", "TensorFlow", "PyTorch"] * 2
    marked = re.findall(r">(\w+)<span class=\"badge\">most images/s</span></th>", page)
    assert marked == ["ring"] * 4  # in both tables


def test_numbers_that_are_not_finite_count_as_not_measured(tmp_path):
    make_run(tmp_path / "a", accuracy=float("nan"), images_per_s=float("inf"))
    output = write(tmp_path, tmp_path / "a")
    for path in output.iterdir():
        text = re.sub("<script type.*|on-nan", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\b(nan|NaN|inf|Infinity|None)\b", text), path


def test_unfinished_runs_are_listed(tmp_path):
    make_run(tmp_path / "runs" / "whole")
    make_run(tmp_path / "runs" / "ended early").joinpath("result.json").unlink()
    (tmp_path / "runs" / "at once" / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "no run").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    output = write(tmp_path, tmp_path / "runs", tmp_path / "runs" / "whole")
    for name in ("report.md", "report.html"):
        text = (output / name).read_text()
        assert "ended early: no result.json" in text
        assert "at once: no config.json and no result.json" in text
        assert "runs/no run" not in text
    assert [row["runs"] for row in table(output)] == ["1"]  # named twice, counted once


def test_wilson_interval_is_that_of_the_literature():
    """Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17, 1998, table I."""
    for correct, of, expected in ((81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)),
                                  (1, 29, (0.0061, 0.1718)), (29, 29, (0.8830, 1.0))):  # fmt: skip
        assert astuple(wilson(correct / of, of)) == pytest.approx(expected, abs=1e-4)
    for share, of in ((None, 10), (0.5, None), (0.5, 0), (1.5, 10), (-0.1, 10)):
        assert wilson(share, of) is None, (share, of)
