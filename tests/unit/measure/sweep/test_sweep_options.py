"""The own options of a sweep: which trial is run, and the table of trials that others have run."""

from __future__ import annotations

import json

import pytest

from hvdtrain.cli import sweep, sweep_options
from hvdtrain.errors import UserError

SETTINGS = ["--set", "lr=0.1,0.2", "--seeds", "2"]
TASK = {"SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize(
    ("given", "environment", "number"),
    [([], {}, None), (["--trial", "3"], TASK, 3), ([], TASK, 2), (["--dry-run"], TASK, None)],
)
def test_the_trial_is_that_of_the_task_of_an_array(given, environment, number):
    assert sweep_options.trial_number(sweep_options.parse([*SETTINGS, *given]), 4, environment) == number


def test_numbers_without_a_trial():
    options = sweep_options.parse([*SETTINGS, "--trial", "4"])
    with pytest.raises(UserError, match=r"--trial 4: the sweep has 4 trials, 0 to 3; .* --array 0-3"):
        sweep_options.trial_number(options, 4, {})
    with pytest.raises(UserError, match="SLURM_ARRAY_TASK_ID=2: the sweep has only trial 0"):
        sweep_options.trial_number(sweep_options.parse([]), 1, TASK)


def test_one_trial_has_the_options_of_its_number(capsys, monkeypatch):
    command = [*SETTINGS, "--dry-run", "--", "train", "--framework", "mxnet"]
    sweep.main(command)
    lines = capsys.readouterr().out.splitlines()
    sweep.main(["--trial", "2", *command])
    assert capsys.readouterr().out.splitlines() == lines[2:3]


def write(folder, name, file, content):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / file).write_text(json.dumps(content))


def test_the_table_shows_trials_of_others_and_why_they_failed(tmp_path, capsys):
    trials = [{"options": {"lr": lr}, "seed": 0} for lr in (0.1, 0.2, 0.3)]
    (tmp_path / "sweep.json").write_text(json.dumps({"command": ["train"], "trials": trials}))
    write(tmp_path, "lr=0.1,seed=0", "result.json", {"accuracy": 0.5, "loss": 1.0, "images_per_s": 10.0})
    write(tmp_path, "lr=0.2,seed=0", "end.json", {"status": "failed", "reason": "rank 1\n was killed"})
    write(tmp_path, "lr=0.3,seed=0", "end.json", {"status": "stopped", "reason": "asked to stop"})
    sweep.main(["--table", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "lr 0.1" in printed and "0.5000" in printed and "sweep.md, sweep.csv" in printed
    page = (tmp_path / "sweep.md").read_text()
    assert "- lr=0.2,seed=0: rank 1" in page and "lr=0.3,seed=0:" not in page
    (tmp_path / "lr=0.3,seed=0" / "sweep.json").write_text('{"command": ["train"], "trials": []}')
    for folder in ("lr=0.1,seed=0", "lr=0.3,seed=0"):
        with pytest.raises(SystemExit) as ended:
            sweep.main(["--table", "--output", str(tmp_path / folder)])
        assert (ended.value.code, "holds no sweep" in capsys.readouterr().err) == (2, True)
