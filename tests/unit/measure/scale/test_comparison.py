"""`scale --compare-compression`: which method to choose, with and without a run."""

import json
import re
from pathlib import Path

import pytest
from support.jobs import ROOT
from support.report import make_run

from hvdtrain.__main__ import main
from hvdtrain.config.compression import Method
from hvdtrain.measure.scale import comparison
from hvdtrain.measure.scale.algorithms import Link
from hvdtrain.measure.scale.comparison import choice, step_on_link
from hvdtrain.measure.scale.compression import Combining, packing_s
from hvdtrain.measure.scale.without_run import workload_of_model

SLOW = ("--latency-us", "100", "--bandwidth-gb-s", "0.0118")
COMPARE = ("scale", "--compare-compression", "--ranks", "4")


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "packing_s", lambda method, shapes, ranks: 1e-4 * (method.name != "none"))
    return tmp_path


def compared(*arguments, run=()):
    return scaled(*run, *COMPARE[1:], *arguments)


def scaled(*arguments):
    """What the command writes."""
    main(["scale", *map(str, arguments)])
    return json.loads(Path("runs/scale/scale.json").read_text())


def training_run(folder, **given):
    """A run of two ranks that communicate for 0.4 s of each second."""
    times = {"compute_s": [0.5, 0.5], "communicate_s": [0.4, 0.4], "data_s": [0.1, 0.1]}
    lines = [{"kind": "train", "step": step, "epoch": step, "loss": 1.0, **times} for step in range(3)]
    return make_run(folder, ranks=2, strategy="ring", metrics=lines, images_per_s=640.0, batch_size=64, **given)


def by_name(made):
    return {(row["compression"], row["sync_every"]): row for row in made["compared"]}


def test_a_slow_link_is_compared_before_anybody_trains(tmp_path, monkeypatch, capsys):
    """The cost of packing is measured."""
    monkeypatch.setattr(comparison, "packing_s", packing_s)
    made = compared("--model", "lenet", "--compute-ms", "27", *SLOW)
    rows, text = by_name(made), capsys.readouterr().out
    assert len(rows) == 11
    plain = rows["none", 1]
    assert plain["sent_bytes"] == 1.5 * 4 * 129_068
    assert plain["factor"] == 1
    assert 1.2 < rows["bf16", 1]["factor"] < rows["int8", 1]["factor"] < rows["powersgd:1", 8]["factor"]
    assert 0 < rows["int8", 1]["step"]["packing"] < plain["seconds"]
    (sentence,) = made["findings"]
    assert sentence.startswith("For 4 ranks, choose --compression int8, ")
    assert "--sync-every change the algorithm" in sentence
    shown, page = " ".join(text.split()), (tmp_path / "runs" / "scale" / "scale.md").read_text()
    assert sentence in shown and sentence in page
    assert "| int8 | 1 | 196.6 |" in page
    assert "written to runs/scale: scale.md, scale.json" in shown


def test_a_network_or_its_size_and_the_methods_are_given():
    made = compared("--parameters", 25_000_000, *SLOW)
    assert {name for name, _ in by_name(made)} == {"none", "fp16", "bf16", "int8"}
    assert any("powersgd is left out" in note for note in made["assumed"])
    assert made["workload"]["gradient_bytes"] == 100_000_000
    made = compared("--model", "mlp", "--input-shape", 3, 32, 32, "--compression", "int8", "--sync-every", 4, *SLOW)
    assert list(by_name(made)) == [("none", 1), ("int8", 4)]
    assert any("computation takes no time" in note for note in made["assumed"])
    assert made["workload"]["gradient_bytes"] == 4 * (3 * 32 * 32 * 256 + 256 + 256 * 10 + 10)


def test_each_number_of_ranks_has_its_rows_and_its_choice():
    made = scaled("--compare-compression", "--ranks", 8, 1, "--model", "lenet", *SLOW)
    assert [sentence.partition(",")[0] for sentence in made["findings"]] == ["For 1 rank", "For 8 ranks"]
    assert made["findings"][0].startswith("For 1 rank, choose --compression none")
    alone = [row for row in made["compared"] if row["ranks"] == 1]
    assert len(alone) == len(made["compared"]) / 2
    assert {(row["factor"], row["seconds"], row["sent_bytes"]) for row in alone} == {(1.0, 0.0, 0.0)}


def test_the_documented_comparison_is_that_of_the_command(capsys, monkeypatch):
    """All but what packing takes, which differs between machines."""
    monkeypatch.setenv("COLUMNS", "200")
    page = (ROOT / "docs" / "scaling.md").read_text()
    (line,) = re.findall(r"^    python -m hvdtrain (scale --compare-compression --model lenet.*)$", page, re.M)
    made = by_name(scaled(*line.split()[1:]))
    rows = re.findall(r"^\| ([\w:]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \| (.*) \|$", page, re.M)
    assert len(rows) == len(made)
    for name, every, kilobytes, step_ms, factor, changes in rows:
        row = made[name, int(every)]
        assert f"{row['sent_bytes'] / 1e3:,.1f}" == kilobytes
        assert row["changes"] == changes
        assert row["seconds"] * 1e3 == pytest.approx(float(step_ms), rel=0.1)
        assert row["factor"] == pytest.approx(float(factor), rel=0.1)


def test_a_run_is_compared_whatever_its_own_method_was(tmp_path):
    for method in ("none", "int8"):
        training_run(tmp_path / method, compression=method)
    plain, packed = (compared(*SLOW, run=[name]) for name in ("none", "int8"))
    assert plain["compared"] == packed["compared"]
    assert plain["workload"]["gradient_bytes"] == 4 * 129_068


def test_a_run_is_predicted_with_its_method_or_with_another(tmp_path):
    training_run(tmp_path / "run", compression="bf16")
    transfer = {}
    for name, options in {"run": (), "none": ("--compression", "none"), "local": ("--sync-every", "4")}.items():
        made = scaled("run", *SLOW, "--ranks", 8, *options)
        transfer[name] = made["combining"], made["predictions"][0]["step"]["transfer"]
    assert transfer["run"] == ("--compression bf16", pytest.approx(transfer["none"][1] / 2))
    assert transfer["local"] == ("--compression bf16 --sync-every 4", pytest.approx(transfer["run"][1] / 4))


def test_a_method_that_changes_more_must_be_faster():
    """int8 by 3 % more than bf16 is not worth its rounding."""
    workload = workload_of_model("lenet", (), 10, 0.027)
    step = step_on_link(workload, Link(1e-4, 1e-8), 4)

    def row(name, factor, every=1):
        rank = 2 if name == "powersgd" else 0
        return comparison.Compared(4, Combining(Method(name, rank), every), step, 0.0, factor)

    rows = [row("none", 1.0), row("bf16", 1.5), row("int8", 1.54), row("powersgd", 1.56), row("none", 1.57, 8)]
    assert choice(rows).startswith("For 4 ranks, choose --compression bf16, 1.5 times")
    assert "algorithm" not in choice(rows)
    assert "--compression powersgd:2 would be 2.0 times" in choice([*rows, row("powersgd", 2.0)])


def test_a_step_on_a_link_is_that_of_the_command():
    workload = workload_of_model("lenet", (), 10, 0.027)
    link = Link(100e-6, 1e-9 / 0.0118)
    made = by_name(compared("--model", "lenet", "--compute-ms", "27", *SLOW))
    for (name, every), row in made.items():
        method = Method(*([name] if ":" not in name else ["powersgd", int(name[-1])]))
        step = step_on_link(workload, link, 4, combining=Combining(method, every))
        assert step.seconds == pytest.approx(row["seconds"])
    assert step_on_link(workload, link, 4, "ring").control == 0
    alone, shared = (step_on_link(workload, link, 4, combining=Combining(Method("int8")), sharing=n) for n in (1, 2))
    assert (shared.compute, shared.packing) == pytest.approx((2 * alone.compute, 2 * alone.packing))
