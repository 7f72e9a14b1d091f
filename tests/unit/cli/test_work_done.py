"""Commands that find their work done: they say so, and nothing of a record changes."""

import os
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from support.user_loop_runs import CONFIG
from torch import nn

import hvdtrain
from hvdtrain.__main__ import main
from hvdtrain.cli import bench, sweep_settings
from hvdtrain.config.option_parser import read_arguments
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.measure.bench import strategies
from hvdtrain.measure.sweep import trials
from hvdtrain.runs import checkpoints
from hvdtrain.system.files import read_json

TRAIN = ("--framework", "torch", "--strategy", "single", "--model", "mlp", "--bind", "none", "--max-steps", "4")
TRAIN += ("--log-every", "2", "--checkpoint-every", "2", "--data", "digits")
SWEEP = ("--output", "all", "--set", "lr=0.05", "--", "train", *TRAIN)
BENCH = ("--output", "bench", "--rows", "torch/single", "--repeats", "1", "--steps", "20")
BENCH += ("--set", "data=digits", "--set", "model=mlp")
ROW = strategies.BenchRow("torch", "single", "", "", "one", "")
ROWS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2


class Task:
    def data(self):
        return ROWS, ROWS

    def model(self):
        return nn.Linear(4, 2)


def fit(**options):
    return hvdtrain.fit(Task, Config(**CONFIG), RuntimeOptions(device="cpu", **options))


def own_loop(**options):
    """A script; returns its rows, its model, and where it is when its loop has ended."""
    with hvdtrain.start(Config(**CONFIG), RuntimeOptions(device="cpu", **options)) as run:
        model = nn.Linear(4, 2)
        model, _ = run.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        rows = 0
        for images, labels in run.batches(ROWS):
            rows += len(images)
            run.step(nn.functional.cross_entropy(model(images), labels, reduction="none"))
        return rows, model, (run.epoch, run.steps, run.steps_per_epoch, run.folder)


def content(folder):
    """Every file of the runs below a folder, except for the lock, which says who had the folder last."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("lock-"))
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with mock.patch.dict(os.environ), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(bench, "all_rows", lambda: [ROW])
        main(["train", *TRAIN, "--name", "network", "--lr", "0.05"])
        fit(name="task")
        own_loop(name="loop")
        for command in (*_trials(), *_jobs()):  # in this process: each job of these commands takes seconds to start
            main(command)
        main(["sweep", *SWEEP])
        main(["bench", *BENCH])
        yield folder


def _trials():
    words = SWEEP.index("--")
    options, command = sweep_settings.parse([*SWEEP[:words]]), [*SWEEP[words + 1 :]]
    for trial in trials.plan(sweep_settings.parse_settings(options, command), options.seeds):
        yield trial.command(command, options.output)


def _jobs():
    options = read_arguments(strategies.StrategyBenchOptions, "bench", [*BENCH])
    for job in strategies.plan([ROW], options):
        yield [*strategies.command(job, options)[3:], "--bind", "none"]


DONE = {
    "train --resume": lambda: main(["train", "--resume", "runs/network"]),
    "a checkpoint": lambda: main(["train", "--resume", "runs/network/checkpoints/step-00000004"]),
    "--resume auto": lambda: main(["train", *TRAIN, "--name", "network", "--resume", "auto"]),
    "fewer steps": lambda: main(["train", "--resume", "runs/network", "--max-steps", "3"]),
    "a task": lambda: fit(resume=Path("runs/task")),
    "a script": lambda: own_loop(resume=Path("runs/loop")),
    "sweep": lambda: main(["sweep", *SWEEP]),
    "bench": lambda: main(["bench", *BENCH]),
}
READS = {
    "scale": lambda: main(["scale", "runs/network", "--link", "50/1"]),
    "export": lambda: main(["export", "runs/network", "network.onnx", "--force"]),
    "predict": lambda: main(["predict", "runs/network", "image.png"]),
    "replay": lambda: main(["replay", "runs/network"]),
    "report": lambda: main(["report", "runs", "--output", "report"]),
    "show": lambda: main(["show", "runs/network"]),
    "runs": lambda: main(["runs", "runs"]),
    "sweep --table": lambda: main(["sweep", "--output", "all", "--table"]),
}


@pytest.mark.parametrize("command", [*DONE, *READS])
def test_nothing_changes(command, finished, capfd):
    from PIL import Image

    Image.fromarray(np.zeros((8, 8), np.uint8)).save("image.png")
    for _ in range(2 if command in DONE else 1):
        before = {name: content(finished / name) for name in ("runs", "all", "bench")}
        capfd.readouterr()
        {**DONE, **READS}[command]()
        said = "".join(capfd.readouterr())
        after = {name: content(finished / name) for name in before}
        shutil.rmtree(finished / "runs" / "scale", ignore_errors=True)  # the output of scale is beside the runs
        for name, files in before.items():
            changed = {path for path in files if files[path] != after[name].get(path)}
            assert not changed
            assert command == "scale" or after[name].keys() == files.keys()
        assert ("nothing to do" in said) == (command in DONE)


def test_a_script_goes_on_after_its_loop(finished):
    rows, model, position = own_loop(resume=Path("runs/loop"), quiet=True)
    saved = checkpoints.newest(finished / "runs" / "loop")[1]
    assert (rows, position[:3]) == (0, (2, 6, 3))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, saved.weights[name])


def test_the_result_of_a_run_that_was_killed_before_it_has_the_speed_of_its_steps(finished):
    """It made its last step, and wrote its last checkpoint; whoever resumes it makes none."""
    result = read_json(finished / "runs" / "network" / "result.json")
    for missing in ("end.json", "result.json"):
        shutil.copytree("runs/network", f"runs/without-{missing}")
        os.unlink(f"runs/without-{missing}/{missing}")
        main(["train", "--resume", f"runs/without-{missing}"])
        again = read_json(finished / "runs" / f"without-{missing}" / "result.json")
        for name in ("accuracy", "loss", "steps", "parameters"):
            assert again[name] == result[name]
        for name in ("images_per_s", "step_s"):
            assert again[name] == pytest.approx(result[name])
