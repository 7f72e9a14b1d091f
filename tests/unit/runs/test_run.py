"""Runs as they are read, the search for them, and the values of their files."""

import json
import os

import pytest
from support.errors import refused
from support.report import make_run

from hvdtrain.cli import runs
from hvdtrain.errors import UserError
from hvdtrain.runs.records import RunConfig, RunResult, read, texts
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.search import find_runs


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b", "a"):
        make_run(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert [path.name for path in find_runs(tmp_path)] == ["a", "b"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(UserError, match="no such folder"):
        find_runs(tmp_path / "missing")


def test_folders_that_may_not_be_listed_are_named(tmp_path, monkeypatch, capsys):
    """By another user than root, whom nothing stops."""
    for name in ("a", "b"):
        make_run(tmp_path / name)
    monkeypatch.setattr("hvdtrain.runs.search.is_run", lambda folder: folder.name == "a")
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != str(tmp_path / "b"))
    runs.main([str(tmp_path), "--json"])
    printed = capsys.readouterr()
    assert [run["name"] for run in json.loads(printed.out)] == ["a"]
    assert printed.err.rstrip().endswith(": b")


@pytest.mark.parametrize("file", ["config.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\x00", b"\xff", b"[" * 100000])
def test_a_damaged_file_is_named_and_its_values_are_unknown(tmp_path, file, content):
    path = make_run(tmp_path / "run") / file
    path.write_bytes(content)
    run = RecordedRun(path.parent)
    assert (run.result, run.config)[file == "config.json"] == (RunResult(), RunConfig())[file == "config.json"]
    with pytest.raises(UserError, match=f"{file}: is not what hvdtrain writes"):
        run.require()


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("config.json", "config", None), ("config.json", "framework", ["torch"]), ("config.json", "ranks", 0),
        ("config.json", "host", "node"), ("result.json", "steps", None), ("result.json", "global_batch", -1),
        ("result.json", "per_class_accuracy", [1]),
    ],
)  # fmt: skip
def test_a_value_that_no_run_writes_is_named(tmp_path, file, name, value):
    path = make_run(tmp_path / "run") / file
    content = json.loads(path.read_text())
    (content["config"] if name == "framework" else content)[name] = value
    path.write_text(json.dumps(content))
    refused(RecordedRun(path.parent).require, str(path), name)


@pytest.mark.parametrize("value", [True, "1", [1], {}, 10**400, -1, 1.5])
def test_counts_are_integers_from_0_and_numbers_are_finite(tmp_path, value):
    """NaN and infinities, which earlier versions wrote, are unknown numbers."""
    (file := tmp_path / "result.json").write_text(json.dumps({"steps": value, "loss": 0.5}))
    assert read(file, RunResult) == RunResult()
    file.write_text(json.dumps({"steps": 3, "loss": float("nan"), "cores": float("inf")}).replace("0.5", "1e999"))
    assert read(file, RunResult) == RunResult(steps=3)


def test_texts_have_no_control_characters_and_are_cut(tmp_path):
    host = {"name": "a\x1b[2J", "number": 3, "flag": True, "list": [1]}
    (file := tmp_path / "config.json").write_text(
        json.dumps({"device": "a\x1b[2J", "started": "x" * 1000, "host": host})
    )
    config = read(file, RunConfig)
    assert (config.device, len(config.started), config.text("lr")) == ("a\\x1b[2J", 301, "")
    assert texts(config.host) == {"name": "a\\x1b[2J", "number": "3", "flag": "yes"}
