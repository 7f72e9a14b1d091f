"""Failures give a one-line error and the right exit status, and end every rank."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from support.jobs import PROGRAMS, launcher, run, train
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.system.run_end import RunEnd

QUICK = ("--max-steps", "2", "--name", "run")


def entry_point(framework="torch"):
    return ["python", "-m", f"hvdtrain.{framework}_lenet"]


OPTIONS = [
    (("--lrr", "0.1"), "unrecognized arguments: --lrr 0.1; --lrr is not an option"),
    (("--lr", "-1"), "--lr -1.0: must be above 0"),
    (("--lr", "fast"), "--lr fast is not valid; give a number"),
    (("--momentum", "1.5"), "--momentum 1.5: must be below 1"),
    (("--nesterov", "--momentum", "0"), "--nesterov True: requires momentum; use --optimizer sgd"),
    (("--epochs", "0"), "--epochs 0: must be above 0"),
    (("--keep", "0"), "--keep 0: must be 1 or more"),
    (("--strategy", "single", "--compression", "fp16"), "--compression fp16: --strategy single does not compress"),
    (
        ("--strategy", "ddp", "--groups", "2"),
        "--groups 2: only --strategy horovod has this option",
    ),
    (("--groups", "0"), "--groups 0: must be above 0; give another number, or auto"),
    (("--groups", "-1"), "--groups -1: must be above 0"),
    (("--groups", "x"), "groups"),
    (("--groups", "9"), "--groups 9: lenet has 8 gradients; give at most 8, or auto"),
    (("--op", "adasum", "--groups", "2"), "--groups 2: Adasum combines each gradient by itself"),
    (("--framework", "mxnet"), "use python -m hvdtrain.mxnet_lenet"),
    (("--recipe", "cake"), "cake"),
    (("--resume", "nowhere"), "--resume nowhere: no valid config.json"),
    (("--data", "no-such-data"), "no-such-data"),
    (("--model", "cifar_lenet"), "takes images of 3x32x32, but the data.s are 1x28x28"),
    (("--batch-size", "5000", "--remainder", "drop"), "--batch-size 5000: larger than the 1437 training images"),
    (("--device", "gpu"), "--device gpu: the framework sees no GPU on this host"),
    (("--op", "adasum", "--clip-norm", "1"), "Adasum"),
]


@pytest.mark.guarantee("invalid-input")
@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[" ".join(options) for options, _ in OPTIONS])
def test_invalid_options(tmp_path, options, message):
    if "gpu" in options and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    status, output = run([*entry_point(), *options], tmp_path)
    assert status == 2, output
    assert re.search(message, output), output
    assert "Traceback" not in output
    assert not list(tmp_path.glob("runs/*/checkpoints"))


@pytest.mark.guarantee("invalid-input")
@pytest.mark.needs("mxnet")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--accumulate", "2"), "--accumulate 2: Horovod for MXNet has no backward_passes_per_step"),
        (("--op", "adasum"), "--op adasum: Horovod for MXNet has no Adasum"),
        (("--precision", "fp16"), "--precision fp16: MXNet 1.9 has no fp16"),
    ],
)
def test_options_that_mxnet_does_not_support(tmp_path, options, message):
    status, output = run([*entry_point("mxnet"), *options], tmp_path)
    assert (status, message in output) == (2, True), output


def test_unknown_command_and_help(tmp_path):
    status, output = run(["python", "-m", "hvdtrain", "trian"], tmp_path)
    assert (status, "unknown command 'trian'" in output) == (2, True)
    status, output = run(["python", "-m", "hvdtrain", "--help"], tmp_path)
    assert (status, "predict" in output) == (0, True)
    status, output = run([*entry_point(), "--help"], tmp_path)
    assert (status, "--batch-size" in output) == (0, True)


BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name == {name!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'")
sys.meta_path.insert(0, Missing())
from hvdtrain.cli.train import main
main({framework!r})
"""


@pytest.mark.guarantee("invalid-input")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"mxnet"}))
def test_missing_framework_and_missing_horovod(tmp_path, framework):
    for name, message in (
        (framework, f"{framework} cannot be imported (No module named '{framework}'); run: make setup STACK="),
        (f"horovod.{framework}", f"Horovod was built without {framework}"),
        ("horovod", "Horovod is not installed; run: make setup"),
    ):
        code = BLOCKED.format(name=name, framework=framework)
        status, output = run(["python", "-c", code], tmp_path)
        assert (status, message in output) == (2, True), output
        assert "Traceback" not in output


def test_launcher_that_horovod_does_not_detect(tmp_path):
    as_mpich_sets_them = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    status, output = run([*entry_point(), *QUICK], tmp_path, **as_mpich_sets_them)
    assert status == 2, output
    assert "each process sees only itself: Horovod was built without MPI" in output
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    status, output = run([*entry_point(), *QUICK], tmp_path, **environment)
    assert status == 2, output
    assert "torchrun started 2 processes, but Horovod cannot see them" in output
    status, output = run([*entry_point(), *QUICK, "--strategy", "single"], tmp_path, **environment)
    assert status == 2, output
    assert "with --strategy single each would train alone" in output


@pytest.mark.guarantee("not-finite")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"mxnet"}))
def test_nan_on_one_rank_ends_the_job_and_is_reported(tmp_path, framework):
    options = ("--name", "run", "--max-steps", "20", "--log-every", "8")
    command = [*launcher("local", 2), "python", str(PROGRAMS), "nan", framework, *options]
    status, output = run(command, tmp_path)
    assert status != 0
    assert "rank 1: loss is not finite at step 5" in output
    end = RunEnd.read(tmp_path / "runs" / "run")
    assert (end.status, end.exit_status, end.rank) == ("failed", 1, 1)
    assert "uncaught exception" not in output, "Horovod is shut down before the first rank ends"
    assert not list(tmp_path.glob("runs/run/checkpoints/*")), "values that are not finite are not saved"


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"mxnet"}))
def test_a_crash_on_one_rank_ends_the_job_at_once(tmp_path, framework):
    command = [*launcher("gloo", 2), "python", str(PROGRAMS), "crash", framework, "--epochs", "1000", *QUICK[2:]]
    status, output = run([*command, "--hang-timeout", "150"], tmp_path)
    assert status != 0
    assert "Fatal Python error: Segmentation fault" in output
    assert "no step for" not in output


@pytest.mark.guarantee("skip-together")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"torch"}))
def test_all_ranks_skip_a_step_with_nan(tmp_path, framework):
    command = [*launcher("local", 2), "python", str(PROGRAMS), "nan", framework, *QUICK[2:], "--max-steps", "20"]
    status, output = run([*command, "--on-nan", "skip"], tmp_path)
    assert status == 0, output
    result = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    assert result["skipped"] == 1
    assert np.isfinite(result["loss"])


@pytest.mark.guarantee("ranks-that-differ")
@pytest.mark.parametrize("by", cases(["gloo", "mpirun"], short={"mpirun"}))
def test_ranks_with_different_parameters_are_detected(tmp_path, by):
    options = ("--name", "run", "--max-steps", "20", "--check-sync", "2")
    command = [*launcher(by, 2), "python", str(PROGRAMS), "drift", FASTEST, *options]
    status, output = run(command, tmp_path)
    assert status != 0
    assert "after step 6: parameter dense2.bias of rank 1 differs from rank 0's" in output


def test_option_that_differs_between_ranks_is_named(tmp_path):
    status, output = run([*launcher("local", 2), "python", str(PROGRAMS), "differ", FASTEST, *QUICK], tmp_path)
    assert status != 0
    assert "rank 1 has --lr 0.2, rank 0 has 0.1" in output
    assert "uncaught exception" not in output


def test_corrupt_data_on_one_rank_ends_the_job(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.npz").write_bytes(b"PK broken")
    (tmp_path / "bad" / "test.npz").write_bytes(b"PK broken")
    command = [*launcher("mpirun", 2), "python", str(PROGRAMS), "own_data", FASTEST, *QUICK, str(tmp_path / "bad")]
    began = time.monotonic()
    status, output = run(command, tmp_path)
    assert status != 0
    assert "rank 1: " in output
    assert "train.npz" in output
    assert time.monotonic() - began < 60


def test_training_on_own_data(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "own").mkdir()
    for name in ("train", "test"):
        labels = rng.integers(0, 10, 200)
        images = np.zeros((200, 28, 28), np.uint8)
        images[np.arange(200), labels * 2] = 255
        np.savez(tmp_path / "own" / f"{name}.npz", images=images, labels=labels)
    options = ("--strategy", "single", "--data", "own", "--epochs", "8", "--batch-size", "20")
    folder = train(tmp_path, "torch", *options)
    assert json.loads((folder / "result.json").read_text())["accuracy"] == 1.0


@pytest.mark.guarantee("not-finite")
@pytest.mark.guarantee("failed-training")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_diverging_parameters_end_the_job(tmp_path, framework):
    """Even if the loss is finite, because a ReLU turns NaN into 0."""
    options = ("--strategy", "single", "--lr", "1e15", "--warmup-epochs", "0", "--log-every", "4", "--max-steps", "12")
    status, output = run([*entry_point(framework), *options, "--name", "run"], tmp_path)
    assert status == 1, output
    assert "is not finite" in output
    assert not list(tmp_path.glob("runs/run/checkpoints/*"))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("after", [1, 12])
def test_a_task_that_fails_leaves_its_traceback(tmp_path, after):
    """The user's frames on the console, all in the rank's log, which there is not before the first step."""
    (tmp_path / "sums.py").write_text("def total(values):\n    return values['price']\n")
    (tmp_path / "mine.py").write_text(FAILING_TASK)
    options = ("--strategy", "single", "--epochs", "1", "--batch-size", "4", "--name", "run", "--set", f"after={after}")
    status, output = run(["python", "-m", "hvdtrain", "train", "mine.py:Task", *options], tmp_path)
    assert status == 2, output
    assert "losses() failed in line 2 of sums.py (IndexError" in output
    texts = [output]
    if after > 1:
        texts.append((tmp_path / "runs" / "run" / "logs" / "rank-0.log").read_text())
    for text in texts:
        assert frames_in(text)[-2:] == [("mine.py", "18"), ("sums.py", "2")] and "user.py" not in dict(frames_in(text))
    assert frames_in(output) == [("mine.py", "18"), ("sums.py", "2")]
    assert output.count("Traceback") == 1


def frames_in(text):
    """File and line of each frame of the tracebacks in a text."""
    return re.findall(r'File ".*/(\w+\.py)", line (\d+)', text.partition("Traceback")[2])


@pytest.mark.needs("torch")
@pytest.mark.parametrize("place", ["losses", "import", "rows", "loop"])
def test_a_job_shows_the_users_frames_once(tmp_path, place):
    """Of two ranks under a launcher; with the whole traceback in the log of the rank."""
    (tmp_path / "sums.py").write_text("def total(values):\n    return values['price']\n")
    (tmp_path / "mine.py").write_text(FAILING_TASK + (")" if place == "import" else ""))
    (tmp_path / "loop.py").write_text(FAILING_LOOP)
    options = ["--strategy", "ring", "--batch-size", "8", "--name", "run", "--device", "cpu", "--epochs", "1"]
    settings = {"losses": ["after=6"], "rows": ["after=999", "bad_row=50"], "import": ["after=999"], "loop": []}
    options += [word for setting in settings[place] for word in ("--set", setting)]
    options += ["--workers", "1"] if place == "rows" else []
    program = ["loop.py"] if place == "loop" else ["-m", "hvdtrain", "train", "mine.py:Task"]
    status, output = run([*LAUNCH, "2", "--", "python", *program, *options], tmp_path)
    assert status, output
    lines, expected = output.splitlines(), EXPECTED[place]
    for line in expected:
        assert sum(text.endswith(line) for text in lines) == 1, output
    assert [text for text in lines if "hvdtrain/" in text and "File" in text] == []
    if place in ("losses", "loop"):
        logs = [path.read_text() for path in (tmp_path / "runs" / "run" / "logs").glob("rank-*.log")]
        assert any(all(line in log for line in expected) for log in logs)


LAUNCH = ["python", "-m", "hvdtrain", "launch", "local", "-n"]
EXPECTED = {
    "losses": ["in losses", "in total"],
    "import": ["    )", "    ^", "SyntaxError: unmatched ')'"],
    "rows": ["in __getitem__", "assert number != self.bad"],
    "loop": ["losses = total(model(numbers))", "in total"],
}
FAILING_LOOP = """import numpy as np
import torch
from sums import total
import hvdtrain

with hvdtrain.start() as run:
    model = torch.nn.Linear(2, 2)
    model, optimizer = run.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for numbers, labels in run.batches((np.zeros((64, 2), np.float32), np.zeros(64, np.int64))):
        losses = total(model(numbers))
        run.step(losses)
"""
FAILING_TASK = """import numpy as np
import torch
from sums import total

class Task:
    def __init__(self, after, bad_row=None):
        self.after, self.calls, self.bad_row = after, 0, bad_row

    def data(self):
        rows = np.zeros((64, 2), np.float32), np.zeros(64, np.int64)
        return rows if self.bad_row is None else Rows(rows, self.bad_row), rows

    def model(self):
        return torch.nn.Linear(2, 2)

    def losses(self, outputs, labels):
        self.calls += 1
        return total(outputs) if self.calls >= self.after else outputs.sum(1)

class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, bad):
        self.rows, self.bad = rows, bad

    def __len__(self):
        return len(self.rows[0])

    def __getitem__(self, number):
        assert number != self.bad
        return self.rows[0][number], self.rows[1][number]
"""
