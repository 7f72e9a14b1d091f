"""What a run writes to its folder and shows on the console.

Processes have the streams, the terminal and the launcher that users have.
"""

import json
import os
import pty
import re

import pytest
from support.events import read_events
from support.jobs import BIN, launcher, records, result, run, start, succeed
from support.stack import FASTEST

from hvdtrain.runs.history import HistoryReader

PROGRAM = ("python", "-m", f"hvdtrain.{FASTEST}_lenet")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder of a run of two ranks, and the output of its job."""
    folder = tmp_path_factory.mktemp("job")
    options = ("--epochs", "2", "--tracker", "tensorboard", "--name", "run")
    output = succeed([*launcher("mpi", 2), *PROGRAM, *options], folder)
    return folder / "runs" / "run", output


def test_files_of_a_run(job):
    folder, _ = job
    config = json.loads((folder / "config.json").read_text())
    assert config["config"]["epochs"] == 2
    assert config["ranks"] == 2
    assert {FASTEST, "horovod", "numpy", "python"} <= config["versions"].keys()
    assert config["host"]["cores"] >= 1
    assert len(records(folder, "test")) == 2
    hashes = HistoryReader(folder / "metrics.jsonl").read().hashes()
    ended = result(folder)
    assert len(hashes) == 2 and [*hashes.values()][-1].parameters == ended["parameters"]
    assert sum(map(sum, ended["confusion"])) == ended["test_rows"] == 360, "each test image once"
    correct = sum(row[i] for i, row in enumerate(ended["confusion"]))
    assert ended["accuracy"] == pytest.approx(correct / 360)
    assert len(ended["per_class_accuracy"]) == 10
    assert (folder / "metrics.png").read_bytes().startswith(b"\x89PNG")
    losses = [one["loss"] for one in records(folder, "train")]
    assert read_events(folder)["train/loss"] == pytest.approx(losses)
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]


def test_only_rank_0_prints(job, tmp_path):
    _, output = job
    labels, texts = zip(*re.findall(r"^(\[[\d,]+\]<std(?:out|err)>:)(.*)$", output, re.M), strict=True)
    assert set(labels) == {"[1,0]<stderr>:"}
    assert texts[0].startswith("starting rank 0 of 2: importing ") and texts[0].endswith(" and Horovod ...")
    assert all(texts) and not any("<std" in text for text in texts), "a label before each line, and nowhere else"
    assert run([*PROGRAM, "--strategy", "single", "--max-steps", "2", "--quiet"], tmp_path) == (0, "")


def test_progress_bar_on_a_terminal(tmp_path):
    master, terminal = pty.openpty()
    command = [str(BIN / "python"), *PROGRAM[1:], "--strategy", "single", "--epochs", "2"]
    process = start(command, tmp_path, stderr=terminal, TERM="xterm", COLUMNS="120")
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert process.wait() == 0
    process.stdout.close()
    assert b"images/s" in shown
    assert "━".encode() in shown
