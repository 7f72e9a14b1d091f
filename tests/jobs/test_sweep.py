"""Sweeps. They need processes: a trial is a job that fails, is interrupted or is asked to stop while it trains."""

import json
import re

import pytest
from support.jobs import run, succeed
from support.report import table
from support.stack import FASTEST, cases

SWEEP = ("python", "-m", "hvdtrain", "sweep", "--output", "all")
TRAIN = ("train", "--framework", FASTEST, "--strategy", "single", "--log-every", "5")


def results(folder):
    """The modification time of each complete trial's result."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("all/*/result.json")}


def test_trials_fail_or_are_complete_and_have_the_same_bits(tmp_path):
    """One that fails is reported; one that is complete is not run again; numbers of ranks give the same weights."""
    train = ("train", "--framework", FASTEST, "--strategy", "ring", "--shards", "3", "--max-steps", "3",
             "--remainder", "drop")  # fmt: skip
    status, output = run([*SWEEP, "--set", "ranks=1", "--set", "batch-size=16,5000", "--", *train], tmp_path)
    assert status == 1, output
    assert "1 trial(s) failed: batch-size=5000,ranks=1,seed=0: rank 0 on" in output
    assert "--batch-size 5000: larger than the 1437 training images; give a smaller one" in output
    before = results(tmp_path)
    assert set(before) == {"batch-size=16,ranks=1,seed=0"}
    assert "batch-size=5000,ranks=1,seed=0 (rank 0 on " in (tmp_path / "all" / "report" / "report.md").read_text()
    assert {path.name for path in tmp_path.glob("all/*.log")} == {"batch-size=5000,ranks=1,seed=0.log"}

    output = succeed([*SWEEP, "--set", "ranks=1,2", "--set", "batch-size=16", "--", *train], tmp_path)
    assert "1 of 2 trials have ended" in output
    after = results(tmp_path)
    assert set(after) == {f"batch-size=16,ranks={ranks},seed=0" for ranks in (1, 2)}
    assert before.items() <= after.items()
    rows = table(tmp_path / "all" / "report")
    (hash_of_weights,) = {row["parameters"] for row in rows}
    assert len(hash_of_weights) == 16 and f"in all 2 runs with --shards 3 (hash {hash_of_weights})" in output
    for number in (1, 2):
        record = (tmp_path / "all" / f"batch-size=16,ranks={number},seed=0" / "config.json").read_text()
        assert json.loads(record)["ranks"] == number


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
OF_TASK = ("python", "-m", "hvdtrain", "train", "mytask.py:Task", "--batch-size", "16", "--score", "min:perplexity")
ON_ONE_RANK = (*OF_TASK[3:], "--strategy", "single")
ON_TWO_RANKS = ("launch", "local", "-n", "2", "--", *OF_TASK, "--strategy", "ring")


@pytest.mark.needs("torch")
@pytest.mark.parametrize("command", cases([ON_ONE_RANK, ON_TWO_RANKS], [ON_ONE_RANK]))
def test_arguments_of_a_task(tmp_path, command):
    (tmp_path / "mytask.py").write_text(TASK)
    succeed([*SWEEP, "--set", "arg.level=3.0,2.0", "--", *command, "--epochs", "1"], tmp_path)
    assert set(results(tmp_path)) == {"arg.level=3.0,seed=0", "arg.level=2.0,seed=0"}
    rows = table(tmp_path / "all" / "report")
    assert [(row["option:arg.level"], float(row["score_median"])) for row in rows] == [("2.0", 2), ("3.0", 3)]
    # The console wraps its headings to the terminal's width.
    assert "test perplexity" in (tmp_path / "all" / "report" / "report.md").read_text()


SCRIPT = """
import json, pathlib, sys, time
from hvdtrain.system.run_end import RunEnd
given = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
level, run = float(given["level"]), pathlib.Path(given["runs"], given["name"])
run.mkdir(parents=True)
config = {"config": {"seed": 0}, "runtime": {"score": "min:perplexity"}, "ranks": 1, "devices": 1}
(run / "config.json").write_text(json.dumps(config))
for epoch in (1, 2, 3):
    with open(run / "metrics.jsonl", "a") as file:
        record = {"kind": "test", "step": epoch, "epoch": epoch, "loss": 1, "perplexity": level}
        file.write(json.dumps(record) + "\\n")
for look in range(30):
    time.sleep(0.02)
    if (run / "STOP").exists():
        RunEnd("stopped", 75).write(run)
        sys.exit(75)
result = {"loss": 1, "steps": 3, "global_batch": 1, "metrics": {"perplexity": level}}
(run / "result.json").write_text(json.dumps(result))
RunEnd("finished").write(run)
"""
"""Makes the files of a training, of which it computes nothing, and stops when it is asked to."""
OF_SCRIPT = ("launch", "local", "-n", "1", "--", "python", "trial.py")


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (OF_SCRIPT, "--level"),
        pytest.param(
            (*ON_TWO_RANKS, "--arg", "pause=0.3", "--epochs", "7"),
            "arg.level",
            marks=[pytest.mark.matrix, pytest.mark.needs("torch")],
        ),
    ],
    ids=["files of a training", "training"],
)
def test_a_search_ends_bad_trials_early_and_continues(tmp_path, command, level):
    """Four trials that are complete, then one that is worse than their median."""
    pytest.importorskip("optuna")
    (tmp_path / "mytask.py").write_text(TASK)
    (tmp_path / "trial.py").write_text(SCRIPT)
    search = [*SWEEP, "--set", f"{level}=float:1:9", "--sampler", "random"]
    status, output = run([*search, "--trials", "4", "--", *command], tmp_path)
    assert status == 0 and "pruned" not in output, output
    before = results(tmp_path)
    assert len(before) == 4
    values = sorted(float(row["score_median"]) for row in table(tmp_path / "all" / "report"))

    output = succeed([*search, "--trials", "6", "--", *command], tmp_path)
    assert "4 of 6 trials have ended" in output and before.items() <= results(tmp_path).items()
    pruned = re.findall(r"pruned after evaluation \d+: test perplexity ([\d.]+) is worse", output)
    assert pruned and min(map(float, pruned)) > values[1]
    assert len(results(tmp_path)) == 6 - len(pruned)
    states = [json.loads(path.read_text())["status"] for path in tmp_path.glob("all/*/end.json")]
    assert sorted(states) == ["finished"] * (6 - len(pruned)) + ["pruned"] * len(pruned)
    assert (tmp_path / "all" / "report" / "report.md").read_text().count(" (pruned: ") == len(pruned)
