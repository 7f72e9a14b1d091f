"""Rows of the report: which runs are repetitions, and what the table shows of them."""

import json
import re

import pytest
from support.report import images, lines, make_run, number, sample, table, write


def test_repetitions_are_one_row_with_median_minimum_and_maximum(tmp_path, capsys):
    for name, speed, seed in (("a", 900.0, 0), ("b", 1100.0, 1), ("c", 1000.0, 0)):
        given = {"epoch_s": speed / 100, "peak_rss_mb": speed / 2, "accuracy": speed / 2000, "seed": seed}
        parts = {"compute": 0.5, "communicate": 0.25, "update": 0.125, "data": 0.125}
        profile = {"shares": parts, "peak_flops": 1e9} if name != "c" else {"shares": None}
        profile |= {"step_s": 25 / speed, "cores": 2, "flops_per_image": 1e5}
        make_run(tmp_path / "runs" / name, images_per_s=speed, framework="mxnet", **profile, **given)
    row = lines(write(tmp_path, tmp_path / "runs"))["mxnet", "single", "1", "1"]
    expected = {
        "runs": 3, "images_per_s_median": 1000, "images_per_s_least": 900, "images_per_s_greatest": 1100,
        "epoch_s": 10, "peak_rss_mb": 550, "accuracy_median": 0.5, "accuracy_least": 0.45, "accuracy_greatest": 0.55,
        "compute_share": 0.5, "communicate_share": 0.25, "update_share": 0.125, "data_share": 0.125, "step_s": 0.025,
        "images_per_core_s": 500, "peak_share": 0.1, "speedup": 1, "efficiency": 1,
    }  # fmt: skip
    assert {name: number(row, name) for name in expected} == pytest.approx(expected)
    page = (tmp_path / "out" / "report.md").read_text()
    assert (
        "| mxnet | single | 1 × 1 | 1,000 (900 to 1,100, 3 runs) | 500 | 10% | 10.00 | "
        "25.0 ms: 50% / 25% / 12% / 12% | base | — | 550 | 0.5000 (0.4500 to 0.5500) | — |"
    ) in page
    assert "- seed: differs: 0 (2 runs), 1 (1 run)\n" in page
    output = capsys.readouterr().out.splitlines()
    assert re.sub(" +", " ", output[3]) == "mxnet single 1 × 1 1,000 base 0.5000 —"
    assert output[-1] == f"written to {tmp_path / 'out'}: report.md, report.csv, report.html"


def test_what_was_not_measured_is_an_empty_part(tmp_path):
    """The update of a framework's own loop; everything but shares in a run of an older version."""
    make_run(tmp_path / "fit", step_s=0.02, shares={"compute": 0.9, "communicate": 0, "update": None, "data": 0.1})
    old = {"compute": 0.5, "communicate": 0.25, "data": 0.25}
    make_run(tmp_path / "old", framework="mxnet", shares=old, without=("step_s", "cores", "peak_flops"))
    text = (write(tmp_path, tmp_path) / "report.md").read_text()
    assert "| 20.0 ms: 90% / 0% / — / 10% |" in text
    assert "| 1,000 (1 run) | — | — | 2.00 | 50% / 25% / — / 25% |" in text
    assert [row["update_share"] for row in table(tmp_path / "out")] == ["", ""]


def test_runs_over_gloo_and_over_mpi_are_no_repetitions(tmp_path):
    for name, controller in (("a", "Gloo"), ("b", "MPI"), ("c", "MPI")):
        make_run(tmp_path / name, strategy="horovod", ranks=2, controller=controller)
    rows = table(write(tmp_path, tmp_path))
    assert [(row["strategy"], row["controller"], row["runs"]) for row in rows] == [
        ("horovod", "Gloo", "1"), ("horovod", "MPI", "2"),
    ]  # fmt: skip
    assert "| horovod over MPI |" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_table_fits_the_terminal(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    write(tmp_path, sample(tmp_path / "runs"))
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= width
    assert all("1,025" in line for line in lines if re.match("torch single +1", line))
    assert ("4e-07" in "".join(lines)) == (width >= 80)


def test_runs_with_the_default_style_named_or_not_are_repetitions(tmp_path):
    for name, api in (("a", "auto"), ("b", "gluon"), ("c", "module")):
        make_run(tmp_path / name, framework="mxnet", api=api)
    make_run(tmp_path / "d", framework="mxnet", strategy="kvstore", kvstore="dist_sync", ranks=2)
    text = (write(tmp_path, tmp_path) / "report.md").read_text()
    assert [line.split(" | ")[1:4] for line in text.splitlines() if line.startswith("| mxnet")] == [
        ["single", "1 × 1", "1,000 (1,000 to 1,000, 2 runs)"],
        ["single (module)", "1 × 1", "1,000 (1 run)"],
        ["kvstore dist_sync", "2 × 1", "1,000 (1 run)"],
    ]


def test_a_row_names_settings_that_differ_from_most_runs(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, framework={"a": "torch", "b": "mxnet"}[name])
    make_run(tmp_path / "c", precision="bf16", lr=0.1)
    folder = write(tmp_path, tmp_path)
    assert [row["settings"] for row in table(folder)] == [
        "",
        "",
        "lr 0.1, precision bf16",
    ]
    text = (folder / "report.md").read_text()
    assert "- precision: differs: fp32 (2 runs), bf16 (1 run)\n" in text
    assert "- momentum: 0.9\n" in text


def test_old_runs_without_newer_values(tmp_path):
    folder = make_run(
        tmp_path / "old", without=("devices", "epoch_s", "global_batch", "shares", "places"), ranks=2,
        strategy="horovod", batch_scope="per-rank", images_per_s=0.0,
    )  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    for name in ("api", "kvstore", "on_nan"):
        del config["config"][name]
    (folder / "config.json").write_text(json.dumps(config))
    output = write(tmp_path, folder)
    row = lines(output)["torch", "horovod", "2", "1"]
    assert (row["global_batch"], row["api"], row["epoch_s"], row["images_per_s_median"]) == ("128", "auto", "", "")
    text = (output / "report.html").read_text()
    assert "Speed: no run measured its speed." in text
    assert "Shares of a step: no run measured them" in text
    assert "Scaling: no row with several replicas" in text
    assert "Difference from a single process: no run has" in text
    assert images(text) == 1  # accuracy


def test_numbers_that_are_not_finite_count_as_not_measured(tmp_path):
    make_run(tmp_path / "a", accuracy=float("nan"), images_per_s=float("inf"), epoch_s=10**400, peak_rss_mb="1e9")
    output = write(tmp_path, tmp_path / "a")
    for path in output.iterdir():
        text = re.sub('base64,[^"]*|on-nan', "", path.read_text())
        assert not re.search(r"\b(nan|NaN|inf|Infinity|None)\b", text), path
    assert "Not shown:" in (output / "report.html").read_text()


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
        assert "no run" not in text.replace("no run measured", "").replace("no run to", "").replace("no run has", "")
    assert [row["runs"] for row in table(output)] == ["1"]  # named twice, counted once


def test_runs_on_other_machines_are_in_other_rows(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", host={"name": "node2", "processor": "Xeon"})
    make_run(tmp_path / "c", host={"name": "node3"})
    output = write(tmp_path, tmp_path)
    text = (output / "report.md").read_text()
    assert "- node2: Xeon, 4 cores, Linux (1 run)\n" in text
    assert "These are 3 machines" in text
    assert [row["runs"] for row in table(output)] == ["2", "1"]
