"""Folders and ids of new runs, their plots, and JSON that any reader accepts."""

import json
import math
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.fake_learner import numbered, use_fakes
from support.in_process import train_here
from support.run_folders import write_beat, write_log, write_records, write_run
from support.untrusted import save_checkpoint

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import metrics, plots, record
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.plots import MIN_ACCURACY_SPAN, plot_metrics, widened
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import to_json
from hvdtrain.training.train import train


def strict(text):
    """The value of a JSON text; an error for NaN and infinities, which Python's parser accepts."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_unnamed_runs_of_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(record.time, "strftime", lambda _: "20260131-120000")
    names = [record.create_folder(Config(), RuntimeOptions(runs=tmp_path), 2, RunLock()).name for _ in range(3)]
    first = "digits-torch-horovod-np2-20260131-120000"
    assert names == [first, f"{first}-2", f"{first}-3"]


NAMED_AFTER = [
    ({"data": ".."}, "photos"),
    ({"data": "."}, "more"),
    ({"data": ".cache/"}, "cache"),
    ({"data": "/"}, "data"),
    ({"model": ".train.py"}, "train"),
]


@pytest.mark.parametrize(("options", "name"), NAMED_AFTER)
def test_an_unnamed_run_is_listed(tmp_path, monkeypatch, options, name):
    """Lists leave out names that begin with a dot."""
    (tmp_path / "photos" / "more").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos" / "more")
    folder = record.create_folder(Config(**options), RuntimeOptions(runs=tmp_path), 2, RunLock())
    assert folder.name.startswith(f"{name}-torch-")


def write_start(folder):
    """What a run of two ranks has written before its first step."""
    write_run(folder)
    write_log(folder, 0, "begins")
    for rank in range(2):
        write_beat(folder, rank, step=0, rows=0)
    (folder / "metrics.jsonl").touch()
    RunEnd.of_exception(ValueError("of the model")).write(folder)
    with RunLock() as lock:
        lock.acquire(folder)


LEFT = {
    "empty": lambda folder: shutil.rmtree(folder) or folder.mkdir(),
    "failed": lambda folder: None,
    "killed": lambda folder: (folder / "end.json").unlink(),
    "survives": lambda folder: metrics.MetricsWriter(folder).write("members", 0, number=1),
}
"""What of a run that has made no step, so that its name is free."""
TRAINED = {
    "a file of somebody's": lambda folder: (folder / "notes.txt").touch(),
    "no run": lambda folder: (folder / "lock-1.json").unlink(),
    "rows": lambda folder: write_beat(folder, 1, step=0, rows=64),
    "a damaged heartbeat": lambda folder: (folder / "heartbeats" / "rank-1.json").write_text("{"),
    "a logged step": lambda folder: write_records(folder, 5),
    "an evaluation": lambda folder: metrics.MetricsWriter(folder).write("test", 0, loss=1.0),
    "a step at which it failed": lambda folder: RunEnd.of_exception(TrainingError("nan", step=3)).write(folder),
    "a checkpoint that was begun": lambda folder: (folder / "checkpoints" / ".unfinished").mkdir(parents=True),
    "a result": lambda folder: (folder / "result.json").write_text("{}"),
    "the end": lambda folder: RunEnd("finished").write(folder),
}
"""What is never removed."""


@pytest.mark.parametrize("left", [*LEFT, *TRAINED])
def test_only_a_run_without_a_step_gives_its_name_free(tmp_path, left):
    runtime, folder = RuntimeOptions(runs=tmp_path, name="run"), tmp_path / "run"
    write_start(folder)
    (LEFT | TRAINED)[left](folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with RunLock() as lock:
        if left in LEFT:
            assert record.create_folder(Config(), runtime, 1, lock) == folder
            assert [path.name for path in folder.iterdir()] == ["lock-2.json" if before else "lock-1.json"]
        else:
            with pytest.raises(UserError, match="run exists; choose another --name"):
                record.create_folder(Config(), runtime, 1, lock)
            assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_name_of_a_run_that_has_just_begun_is_taken(tmp_path):
    """Its lock says so, in another process."""
    write_start(folder := tmp_path / "run")
    holder = "from pathlib import Path; from hvdtrain.runs.lock import RunLock; RunLock().acquire(Path('run')); input()"
    with subprocess.Popen([sys.executable, "-c", holder], cwd=tmp_path, stdin=subprocess.PIPE) as process:
        while not (folder / "lock-2.json").exists() or not (folder / "lock-2.json").read_bytes():
            time.sleep(0.02)
        with pytest.raises(UserError, match=f"run is in use by process {process.pid}"):
            record.create_folder(Config(), RuntimeOptions(runs=tmp_path, name="run"), 1, RunLock())
        assert (folder / "config.json").exists()
        process.communicate(b"\n")


def test_the_name_of_a_run_that_trains_is_in_use(tmp_path):
    """Though it has a checkpoint, from which it cannot be resumed now; in another process, as its lock says so."""
    (tmp_path / "run").mkdir()
    save_checkpoint(tmp_path / "run" / "checkpoints", 1, position=Position(step=3))
    holder = "from pathlib import Path; from hvdtrain.runs.lock import RunLock; RunLock().acquire(Path('run')); input()"
    runtime = RuntimeOptions(runs=tmp_path, name="run")
    with subprocess.Popen([sys.executable, "-c", holder], cwd=tmp_path, stdin=subprocess.PIPE) as process:
        while not (tmp_path / "run/lock-1.json").exists() or not (tmp_path / "run/lock-1.json").read_bytes():
            time.sleep(0.02)
        with pytest.raises(UserError, match=f"run is in use by process {process.pid}.*; wait for that job or stop it"):
            record.create_folder(Config(), runtime, 1, RunLock())
        process.communicate(b"\n")
    with pytest.raises(UserError, match="run exists; choose another --name, or resume from step 3"):
        record.create_folder(Config(), runtime, 1, RunLock())


@pytest.mark.parametrize(("runs", "name"), [("runs", ""), ("runs", "a"), ("runs/more", ""), (".", "runs")])
@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_link_whose_target_is_missing_is_named(tmp_path, monkeypatch, runs, name, resume):
    """As of scratch space that was purged. It is the folder of runs, one above it, or the run's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to("/nowhere/runs")
    runtime = RuntimeOptions(runs=Path(runs), name=name or "b", resume=resume) if name or resume else RuntimeOptions()
    with pytest.raises(UserError, match=r"cannot be created \(runs is a link to /nowhere/runs, which is missing\)"):
        record.auto_resumed_folder(runtime) if resume else record.create_folder(Config(), runtime, 1, RunLock())


FAILS = """
import numpy as np, torch

class Task:
    def __init__(self, fails: bool = True):
        self.fails = fails

    def data(self):
        rows = np.zeros((8, 3), np.float32), np.zeros(8, np.int64)
        return rows, rows

    def model(self):
        return torch.nn.Linear(3, 2)

    def optimizer(self, parameters):
        task = self

        class Optimizer(torch.optim.SGD):
            def step(self, closure=None):  # which nothing calls before the first step
                if task.fails:
                    raise ValueError("of the optimizer")
                return super().step(closure)

        return Optimizer([parameter for _, parameter in parameters], lr=0.1)
"""


@pytest.mark.needs("torch")
def test_a_task_that_fails_in_its_first_step_is_corrected_under_the_same_name(tmp_path):
    (tmp_path / "task.py").write_text(FAILS)
    given = ("--model", "task.py:Task", "--epochs", "1")
    with pytest.raises(UserError, match="of the optimizer"):
        train_here(tmp_path, "torch", *given)
    failed = RecordedRun(tmp_path / "runs" / "run")
    assert "ValueError: of the optimizer" in failed.end.reason and failed.config.id
    folder = train_here(tmp_path, "torch", *given, "--arg", "fails=False")
    assert RunEnd.read(folder).status == "finished" and not list(folder.glob("config-*.json"))
    with pytest.raises(UserError, match="run exists; choose another --name, or resume from step"):
        train_here(tmp_path, "torch", *given)


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


@pytest.fixture
def train_once(tmp_path, monkeypatch):
    use_fakes(monkeypatch, numbered(8))

    def train_with(name, steps, **options):
        runtime = RuntimeOptions(runs=tmp_path, name=name, quiet=True, **options)
        train(Config(batch_size=4, epochs=9, max_steps=steps), runtime, lambda: [])
        return json.loads((tmp_path / name / "config.json").read_text())

    return train_with


def test_a_run_that_is_resumed_in_its_folder_keeps_its_id_and_parent(tmp_path, train_once):
    first = train_once("run", 2, resume="auto")
    assert re.fullmatch("[0-9a-f]{16}", first["id"])
    assert train_once("run", 4, resume="auto")["id"] == first["id"]
    other = train_once("other", 5, resume=tmp_path / "run")
    assert other["id"] != first["id"] and other["parent"].endswith("run/checkpoints/step-00000004")
    (tmp_path / "run").rename(tmp_path / "gone")
    again = train_once("other", 6, resume="auto")
    assert (again["id"], again["parent"]) == (other["id"], other["parent"])


@pytest.mark.parametrize("value", ["0123", "0123456789ABCDEF", 5, None, {"a": 1}])
def test_an_id_that_is_none_is_replaced(tmp_path, train_once, value):
    record = train_once("run", 2, resume="auto")
    (tmp_path / "run" / "config.json").write_text(json.dumps({**record, "id": value}))
    assert re.fullmatch("[0-9a-f]{16}", train_once("run", 4, resume="auto")["id"])


def test_a_command_with_credentials_is_not_recorded(train_once):
    assert train_once("run", 2, on_end="mail me")["runtime"]["on_end"] == "mail me"
    assert train_once("other", 2, on_end="curl https://me:word@host/")["runtime"]["on_end"] == "..."


LINE = '{"kind": "train", "step": 1, "epoch": 1, "loss": 2}\n'


def test_one_point_is_not_drawn(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(LINE)
    assert plot_metrics(tmp_path, "lenet") is None
    assert not (tmp_path / "metrics.png").exists()


@pytest.mark.parametrize("name", ["a$b$c", r"$\frac$ $x^$", "a_b|<c>\n\x1b[31m", "名" * 200, "\udce4"])
def test_names_are_drawn_as_they_are(tmp_path, name):
    (tmp_path / "metrics.jsonl").write_text(LINE + LINE.replace("1", "2"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot_metrics(tmp_path, f"lenet on {name}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.969, 0.9765, (0.9, 1.0)), (0.5, 0.5, (0.45, 0.55)), (0.0, 0.01, (0.0, 0.1)), (0.2, 0.9, (0.2, 0.9)),
        (96.9, 97.65, (96.9, 97.65)),
    ],
)  # fmt: skip
def test_small_changes_of_an_accuracy_look_small(low, high, expected):
    assert widened(low, high) == pytest.approx(expected, abs=0.03)
    bottom, top = widened(low, high)
    assert bottom <= low and high <= top and (high > 1 or top - bottom >= MIN_ACCURACY_SPAN - 1e-12)
