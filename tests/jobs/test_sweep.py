"""Sweeps: trials as real jobs, one that fails, one that is interrupted, and starting a sweep again."""

import csv
import json
import re
import shlex
import signal

import pytest
from support.jobs import finish, run, start, wait_for
from support.stack import FASTEST

SWEEP = ("python", "-m", "hvdtrain", "sweep", "--output", "all")
TRAIN = ("train", "--framework", FASTEST, "--strategy", "single", "--log-every", "5")


def results(folder):
    """The modification time of each complete trial's result."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("all/*/result.json")}


def test_failed_trial_is_reported_and_complete_ones_are_not_run_again(tmp_path):
    (tmp_path / "run.toml").write_text('max-steps = 4\nremainder = "drop"\n')
    command = ("--", "launch", "local", "-n", "1", "--", "python", "-m", "hvdtrain", *TRAIN)
    command += ("--config", "run.toml")
    status, output = run([*SWEEP, "--set", "batch-size=16,5000", *command], tmp_path)
    assert status == 1, output
    assert "1 trial(s) failed: batch-size=5000,seed=0: rank 0 on" in output
    assert "--batch-size 5000: larger than the 1437 training images; give a smaller one" in output
    before = results(tmp_path)
    assert set(before) == {"batch-size=16,seed=0"}
    assert "batch-size=5000,seed=0: " in (tmp_path / "all" / "sweep.md").read_text()
    assert (tmp_path / "all" / "sweep.png").is_file()
    assert {path.name for path in tmp_path.glob("all/*.log")} == {"batch-size=5000,seed=0.log"}

    status, output = run([*SWEEP, "--set", "batch-size=16", "--seeds", "2", *command], tmp_path)
    assert status == 0, output
    assert "1 of 2 trials are complete" in output
    after = results(tmp_path)
    assert set(after) == {"batch-size=16,seed=0", "batch-size=16,seed=1"}
    assert before.items() <= after.items()
    rows = list(csv.DictReader((tmp_path / "all" / "sweep.csv").open()))
    assert [(row["batch-size"], row["seeds"], row["seeds_planned"]) for row in rows] == [
        ("16", "2", "2"),
        ("5000", "0", "1"),
    ]

    (tmp_path / "run.toml").write_text("max-steps = 5\n")
    status, output = run([*SWEEP, "--set", "batch-size=16", *command], tmp_path)
    assert status == 2, output
    assert "all/batch-size=16,seed=0 was run with --remainder drop, not pad; give another --output" in output


def test_numbers_of_ranks_have_the_same_bits(tmp_path):
    command = (
        "launch",
        "local",
        "--",
        "python",
        "-m",
        "hvdtrain",
        "train",
        "--framework",
        FASTEST,
        "--strategy",
        "ring",
    )
    status, output = run([*SWEEP, "--np", "1,2", "--", *command, "--shards", "3", "--max-steps", "3"], tmp_path)
    assert status == 0, output
    assert set(results(tmp_path)) == {"ranks=1,seed=0", "ranks=2,seed=0"}
    one, two = csv.DictReader((tmp_path / "all" / "sweep.csv").open())
    assert len(one["parameters"]) == 16 and one["parameters"] == two["parameters"]
    assert f"in all 2 runs with --shards 3 (hash {one['parameters']})" in output
    ranks = [json.loads((tmp_path / "all" / f"ranks={n},seed=0" / "config.json").read_text())["ranks"] for n in (1, 2)]
    assert ranks == [1, 2]


@pytest.mark.matrix
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_trial_is_resumed(tmp_path, by):
    """After SIGKILL the trial saves its work too, and the next sweep waits for that."""
    command = [*SWEEP, "--set", "lr=0.01", "--", *TRAIN, "--max-steps", "400", "--checkpoint-every", "10"]
    process, trial = start(command, tmp_path), tmp_path / "all" / "lr=0.01,seed=0"
    wait_for(lambda: list(trial.glob("checkpoints/step-*")), 120)
    process.send_signal(by)
    if by == signal.SIGINT:
        status, output = finish(process, 60)
        assert status == 130, output
        assert output.endswith("hvdtrain: interrupted\n")
        assert not results(tmp_path)

    status, output = run(command, tmp_path)
    assert status == 0, output
    assert set(results(tmp_path)) == {trial.name}
    resumed = re.search(r"resumed from .* step (\d+)", (trial / "logs" / "rank-0.log").read_text())
    assert resumed and 10 < int(resumed[1]) < 400
    finish(process, 10)


TASK = '''
import time
import numpy as np

class Task:
    """The metric is an argument, so that it is known which trial is better."""

    def __init__(self, level=1.0, width=4, pause=0.0):
        self.level, self.width, self.pause = level, width, pause

    def data(self):
        x = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
        rows = x, (x[:, 0] > 0).astype(np.int64)
        return tuple(column[:32] for column in rows), tuple(column[32:] for column in rows)

    def model(self):
        from torch import nn

        return nn.Linear(4, 2)

    def metrics(self, outputs, labels):
        time.sleep(self.pause)
        return {"perplexity": 0 * outputs[:, 0] + self.level}
'''
OF_TASK = ("launch", "local", "-n", "2", "--", "python", "-m", "hvdtrain", "train", "mytask.py:Task")
OF_TASK += ("--strategy", "ring", "--batch-size", "16", "--score", "min:perplexity")


@pytest.mark.needs("torch")
def test_arguments_of_a_task_on_two_ranks(tmp_path):
    (tmp_path / "mytask.py").write_text(TASK)
    command = [*SWEEP, "--set", "level=3.0,2.0", "--", *OF_TASK, "--epochs", "1"]
    status, output = run(command, tmp_path)
    assert status == 0, output
    assert set(results(tmp_path)) == {"set.level=3.0,seed=0", "set.level=2.0,seed=0"}
    best, other = csv.DictReader((tmp_path / "all" / "sweep.csv").open())
    assert [(row["set.level"], float(row["perplexity_median"])) for row in (best, other)] == [("2.0", 2), ("3.0", 3)]
    assert "lowest test perplexity first" in output

    recorded = json.loads((tmp_path / "all" / "sweep.json").read_text())["trials"][0]["command_line"]
    before = results(tmp_path)
    (tmp_path / "all").rename(tmp_path / "first")
    status, output = run(["python", "-m", *shlex.split(recorded)], tmp_path)
    assert status == 0, output
    hashes = [
        json.loads((tmp_path / folder / "set.level=3.0,seed=0" / "result.json").read_text())["parameters"]
        for folder in ("first", "all")
    ]
    assert hashes[0] == hashes[1] and before, "the recorded command line repeats the trial, bit for bit"


@pytest.mark.needs("torch")
def test_a_search_ends_bad_trials_early_and_continues(tmp_path):
    """Four trials that are complete, then one that is worse than their median."""
    pytest.importorskip("optuna")
    (tmp_path / "mytask.py").write_text(TASK)
    command = [*SWEEP, "--set", "level=float:1:9", "--set", "pause=0.3", "--sampler", "random"]
    train = ["--", *OF_TASK, "--epochs", "7"]
    status, output = run([*command, "--trials", "4", *train], tmp_path)
    assert status == 0 and "pruned" not in output, output
    before = results(tmp_path)
    assert len(before) == 4
    values = sorted(float(row["perplexity_median"]) for row in csv.DictReader((tmp_path / "all" / "sweep.csv").open()))

    status, output = run([*command, "--trials", "6", *train], tmp_path)
    assert status == 0, output
    assert "4 of 6 trials have ended" in output and before.items() <= results(tmp_path).items()
    pruned = re.findall(r"pruned after evaluation \d+: test perplexity ([\d.]+) is worse", output)
    assert pruned and min(map(float, pruned)) > values[1]
    assert len(results(tmp_path)) == 6 - len(pruned)
    states = {
        folder.parent.name: json.loads(folder.read_text())["status"] for folder in tmp_path.glob("all/*/end.json")
    }
    assert sorted(states.values()) == ["finished"] * (6 - len(pruned)) + ["pruned"] * len(pruned)
    page = (tmp_path / "all" / "sweep.md").read_text()
    assert page.count("| pruned |") == len(pruned) and "Failed" not in page
