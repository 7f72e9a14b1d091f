"""Scripts with a loop over epochs: schedules that step once an epoch, and figures of their own."""

import json

import pytest
from support.jobs import ROOT, launcher, newest, run
from support.user_loop_runs import assert_identical

pytestmark = pytest.mark.needs("torch")
SCRIPT = ["python", str(ROOT / "tests" / "support" / "user_epochs.py")]
OPTIONS = ["--epochs", "3", "--batch-size", "10", "--device", "cpu", "--quiet", "--log-every", "4"]


def epochs(folder, name, *options, np=2, launch=(), **environment):
    """Run the script; returns its run's folder and its output."""
    command = [*launcher("local", np)[:-1], *launch, "--", *SCRIPT, *OPTIONS, "--name", name, *options]
    status, output = run(command, folder, **environment)
    assert status == 0, output
    return folder / "runs" / name, output


def logged(folder):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["logged"] for record in records if record["kind"] == "train"}


def test_schedules_of_epochs_and_figures_are_the_same_after_a_kill_in_the_middle_of_an_epoch(tmp_path):
    whole, output = epochs(tmp_path, "whole")
    assert output.count("the rate at the end is 0.00025") == 2
    lines = [line.partition(": ")[2] for line in output.splitlines() if ": epoch " in line]
    assert len(lines) == 6 and len(set(lines)) == 3  # the same scores on both ranks
    first = logged(whole)[4]
    assert (first["step"], first["last"]) == (1.5, 1)  # which only the last rank logs
    killed, output = epochs(
        tmp_path, "killed", "--auto-resume", "--checkpoint-every", "4", launch=["--restarts", "1"], KILL_AT="14"
    )
    assert "SIGKILL" in output and "the rate at the end is 0.00025" in output
    assert_identical(killed, whole)
    assert newest(killed).optimizer.extra == {"ended_epochs": 3}


def test_in_shards_the_figures_have_the_same_bits_for_any_number_of_ranks(tmp_path):
    one, three = (epochs(tmp_path, f"{np}", "--shards", "5", np=np)[0] for np in (1, 3))
    assert_identical(three, one)
    figures = [[record["mean_loss"] for record in logged(folder).values()] for folder in (one, three)]
    assert figures[0] == figures[1] and len(figures[0]) == 9


def test_a_lost_rank_changes_neither_schedules_nor_weights(tmp_path):
    whole, _ = epochs(tmp_path, "whole", "--shards", "5")
    lost, output = epochs(tmp_path, "lost", "--shards", "5", np=3, launch=["--survive"], KILL_AT="13")
    assert "the rate at the end is 0.00025" in output
    assert_identical(lost, whole)
