"""Folders of new runs, and JSON that any reader accepts."""

import json
import math

import numpy as np
import pytest

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.runs import metrics, plots, record
from hvdtrain.system.text import to_json


def strict(text):
    """The value of a JSON text; an error for NaN and infinities, which Python's parser accepts."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_unnamed_runs_of_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(record.time, "strftime", lambda _: "20260131-120000")
    names = [record.create_folder(Config(), RuntimeOptions(runs=tmp_path), 2).name for _ in range(3)]
    first = "digits-torch-horovod-np2-20260131-120000"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_named_run_needs_a_new_folder(tmp_path):
    runtime = RuntimeOptions(runs=tmp_path, name="run")
    assert record.create_folder(Config(), runtime, 1) == tmp_path / "run"
    with pytest.raises(UserError, match="run exists; choose another --name"):
        record.create_folder(Config(), runtime, 1)


def test_folder_in_which_a_run_is_continued(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "run" / "config.json").touch()
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000001"):
        assert record.continued_folder(RuntimeOptions(resume=path)) == tmp_path / "run"
        assert record.continued_folder(RuntimeOptions(resume=path, name="other")) is None
    assert record.continued_folder(RuntimeOptions()) is None
    named = RuntimeOptions(runs=tmp_path / "new", name="run", auto_resume=True)
    assert record.continued_folder(named) == tmp_path / "new" / "run"
    assert (tmp_path / "new" / "run").is_dir()


def test_numbers_that_json_does_not_have_become_null():
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, "NaN", None, True)}], "d": np.float64("nan")}
    assert strict(to_json(value)) == {"a": None, "b": [1.5, None, {"c": [None, "NaN", None, True]}], "d": None}


def test_metrics_that_are_not_finite_are_valid_json_and_can_be_plotted(tmp_path):
    writer = metrics.MetricsWriter(tmp_path)
    for step in (1, 2):
        writer.write("test", step, epoch=step, loss=math.nan, accuracy=0.5)
    writer.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [strict(line)["loss"] for line in lines] == [None, None]
    assert plots.plot_metrics(tmp_path, "title").stat().st_size > 1000
