"""Which runs are to have the same weights, and whether they do; the column of hashes."""

import json

import pytest
from support.report import lines, make_run, report_of

from hvdtrain.runs.run import Run
from hvdtrain.views.report.bits import bit_groups, bit_sentences
from hvdtrain.views.report.pages import html_page, markdown_page

A, B = "a" * 16, "b" * 16


def runs_of(tmp_path, **given):
    """Runs with --shards, by name: the values of each that are not the default."""
    common = {"shards": 8, "parameters": A, "strategy": "ring"}
    return [Run(make_run(tmp_path / name, **{**common, **values})) for name, values in given.items()]


def test_only_the_distribution_of_work_may_differ(tmp_path):
    runs = runs_of(tmp_path, one={"ranks": 1, "strategy": "single"}, two={"ranks": 2}, limited={"max_steps": 8})
    (group,) = bit_groups(runs)
    assert group.runs == runs and group.hashes == {A: runs} and not group.changed
    (sentence,) = bit_sentences(runs)
    assert A in sentence and " 3 runs " in sentence


@pytest.mark.parametrize(
    "other",
    [{"shards": 4}, {"seed": 1}, {"lr": 0.3}, {"framework": "mxnet"}, {"steps": 9}, {"threads": 2}, {"isa": "avx2"}],
    ids=str,
)
def test_runs_that_may_differ_are_not_compared(tmp_path, other):
    assert bit_groups(runs_of(tmp_path, one={}, other={"parameters": B, **other})) == []


def test_runs_without_shards_or_result_are_not_compared(tmp_path):
    runs = runs_of(tmp_path, one={"shards": 0}, two={"shards": 0, "parameters": B}, three={"parameters": ""}, four={})
    assert bit_groups(runs) == [] and bit_sentences(runs) == []


def test_a_run_that_is_alone_is_named_with_what_else_differs(tmp_path):
    runs = runs_of(tmp_path, np1={}, np2={"ranks": 2}, np3={"ranks": 3, "parameters": B})
    content = json.loads((tmp_path / "np3" / "config.json").read_text())
    content["versions"]["numpy"], content["host"]["processor"] = "9", "Z80"
    (tmp_path / "np3" / "config.json").write_text(json.dumps(content))
    (group,) = bit_groups([*runs[:2], Run(tmp_path / "np3")])
    assert [(key, [run.name for run in same]) for key, same in group.hashes.items()] == [
        (A, ["np1", "np2"]),
        (B, ["np3"]),
    ]
    assert group.changed == ["numpy", "processor"]
    (sentence,) = bit_sentences(group.runs)
    assert f"{B} in np3" in sentence and "np1" not in sentence and "numpy, processor" in sentence


def test_trainings_that_are_equal_are_counted_and_others_named(tmp_path):
    given = {f"{lr}-{ranks}": {"lr": lr, "ranks": ranks} for lr in (0.1, 0.2, 0.3) for ranks in (1, 2)}
    given["0.3-2"]["parameters"] = B
    first, second = bit_sentences(runs_of(tmp_path, **given))
    assert "0.3-1" in first and "0.3-2" in first
    assert " 2 trainings " in second and "(4 runs)" in second


def test_the_report_has_hashes_and_the_sentence_first(tmp_path):
    runs_of(tmp_path / "runs", one={"ranks": 1}, two={"ranks": 2}, again={"ranks": 2, "seed": 1, "parameters": B})
    rows = lines(tmp_path / "runs")
    assert rows["torch", "ring", "1", "1"]["parameters"] == A
    assert set(rows["torch", "ring", "2", "1"]["parameters"].split()) == {A, B}
    report = report_of(tmp_path / "runs")
    page = markdown_page(report)
    assert f"| {A} |" in page and "| 2 hashes |" in page
    assert page.splitlines()[2].startswith("Weights: ") and A in page.splitlines()[2]
    assert f">{A}<" in html_page(report).replace("\n", "").replace(" ", "")
