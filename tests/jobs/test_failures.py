"""Failures give a one-line error and the right exit status, and end every rank.

In processes: how each of them ends, and what the launcher shows of it. Which options are invalid is tested in one.
"""

import re
import runpy
import sys

import numpy as np
import pytest
from support.jobs import PROGRAMS, ROOT, launch, launcher, result, run, succeed
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.errors import UserError
from hvdtrain.frameworks import preparation
from hvdtrain.frameworks.registry import check_request
from hvdtrain.system.run_end import RunEnd
from hvdtrain.tasks.registry import load_target
from hvdtrain.training.process import read_options

limited_memory = runpy.run_path(str(ROOT / "benchmarks" / "limited_memory.py"))["limited_memory"]
QUICK = ("--max-steps", "2", "--name", "run")


def entry_point(framework="torch"):
    return ["python", "-m", f"hvdtrain.{framework}_lenet"]


ALLOCATES = "import os, time; os.environ['HVDTRAIN_RANK'] == '1' and bytes(1 << 30).swapcase(); time.sleep(60)"


@pytest.mark.parametrize("within", [[], ["sh", "-c", 'python -c "$1"; exit $?', "sh"]], ids=["itself", "in a shell"])
def test_a_rank_that_needs_more_memory_than_its_control_group_has(tmp_path, within):
    program = [*within, ALLOCATES] if within else ["python", "-c", ALLOCATES]
    try:
        with limited_memory(300 << 20) as group:
            status, output = run([*group.command, *launcher("local", 2), *program], tmp_path)
    except UserError as error:
        pytest.skip(str(error))
    assert status == 137, output
    assert re.search(r"rank 1 on \S+: was killed by SIGKILL, as the memory of its control group was used up", output)


INVALID = """
torch       --lrr 0.1                                 unrecognized arguments: --lrr 0.1; --lrr is not an option
torch       --lr -1                                   --lr -1.0: must be above 0
torch       --lr fast                                 --lr fast is not valid; give a number
torch       --strategy single --compression fp16      --compression fp16 with --strategy single: it does not compress
torch       --groups 0                                --groups 0: must be above 0; give another number, or auto
torch       --groups 9                                --groups 9: lenet has 8 gradients; give at most 8, or auto
torch       --framework mxnet                         use python -m hvdtrain.mxnet_lenet
torch       --recipe cake                             cake
torch       --resume nowhere                          --resume nowhere: no such folder
torch       --data no-such-data                       no-such-data
torch       --model cifar_lenet                       takes images of 3x32x32, but the data's are 1x28x28
mxnet       --precision fp16                          --precision fp16: mxnet does not compute in it on this processor
"""
"""A framework, options, and a part of their error."""


@pytest.mark.guarantee("invalid-input")
@pytest.mark.parametrize(
    ("framework", "options", "message"), [re.split(r"\s{3,}", row) for row in INVALID.split("\n")[1:-1]]
)
def test_invalid_options(framework, options, message, tmp_path, monkeypatch):
    """By the functions that a rank calls before it starts anything."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        config, runtime = read_options(framework, f"python -m hvdtrain.{framework}_lenet", options.split())
        target, _ = load_target(config, runtime)
        check_request(config, target, runtime)
    assert message in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.guarantee("invalid-input")
@pytest.mark.parametrize("options", [("--lrr", "0.1"), ("--groups", "9")], ids=" ".join)
def test_the_form_of_an_error(tmp_path, options):
    """Of options that cannot be read, and of those that the framework's strategy refuses."""
    status, output = run([*entry_point(FASTEST), *options], tmp_path)
    assert status == 2, output
    lines = [line for line in output.splitlines() if not line.startswith("starting rank 0")]
    assert len(lines) == 1 and lines[0].startswith("hvdtrain: ") and options[0] in lines[0]
    assert not list(tmp_path.glob("runs/*/checkpoints"))


@pytest.mark.guarantee("invalid-input")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_missing_framework_and_missing_horovod(framework, monkeypatch):
    of_framework = f"horovod.{framework}"
    for missing, required, message in (
        (of_framework, of_framework, rf"Horovod for {framework} cannot be imported \(.*make setup"),
        (framework, framework, rf"{framework} cannot be imported \(.*{framework}.*; run: make setup STACK="),
    ):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(UserError, match=message):
            preparation.require([required], framework)


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
    succeed([*command, "--on-nan", "skip"], tmp_path)
    ended = result(tmp_path / "runs" / "run")
    assert ended["skipped"] == 1 and np.isfinite(ended["loss"])


DIFFER = {
    "checkpoint": ("mpirun", "--checkpoint-every", "2"),
    "check": ("gloo", "--check-sync", "2"),
    "evaluation": ("local", "--strategy", "ring", "--max-steps", "6"),
    "restarts": ("restarts", "--strategy", "ring", "--checkpoint-every", "7", "--log-every", "1"),
    "survive": ("survive", "--strategy", "ring", "--shards", "4", "--checkpoint-every", "2"),
}


@pytest.mark.guarantee("ranks-that-differ")
@pytest.mark.parametrize("case", cases(DIFFER, short={"checkpoint"}))
def test_ranks_with_different_parameters_are_detected(tmp_path, case):
    """No checkpoint has weights of which ranks differ, and none is offered."""
    by, *options = DIFFER[case]
    own = {"restarts": ("--restarts", "9"), "survive": ("--survive",)}
    started = launch("local", 2, *own[by]) if by in own else launcher(by, 2)
    drift = ["python", str(PROGRAMS), "drift", FASTEST, "--name", "run", "--max-steps", "20", *options]
    status, output = run([*started, *drift], tmp_path)
    assert status == 1, output
    found, last = {"check": (6, 4), "evaluation": (6, 0), "restarts": (7, 0)}.get(case, (6, 4))
    assert f"after step {found}: parameter dense2.bias of rank 1 differs from rank 0's" in output
    assert f"; after step {last} they were identical; " in output
    saved = sorted(path.name for path in tmp_path.glob("runs/run/checkpoints/*"))
    assert saved == ([] if case in ("check", "evaluation", "restarts") else ["step-00000002", "step-00000004"])
    assert ("--resume runs/run" in output) == bool(saved)
    assert ("gave up, as 3 attempts in a row wrote no newer checkpoint" in output) == (by == "restarts")


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
@pytest.mark.parametrize(
    ("place", "ranks"), [("first losses", 1), ("losses", 2), ("import", 1), ("rows", 1), ("loop", 2)], ids=str
)
def test_a_failure_of_the_users_code_shows_its_frames_once(tmp_path, place, ranks):
    """On the console, of one rank of a job; with the whole traceback in the log of the rank, once there is one."""
    (tmp_path / "sums.py").write_text("def total(values):\n    return values['price']\n")
    (tmp_path / "mine.py").write_text(FAILING_TASK + (")" if place == "import" else ""))
    (tmp_path / "loop.py").write_text(FAILING_LOOP)
    options = ["--batch-size", "8", "--name", "run", "--device", "cpu", "--epochs", "1"]
    options += ["--strategy", "ring" if ranks > 1 else "single"]
    settings = {"first losses": ["after=0"], "losses": ["after=2"], "rows": ["after=999", "bad_row=50"], "loop": []}
    options += [word for setting in settings.get(place, ["after=999"]) for word in ("--arg", setting)]
    options += ["--workers", "1"] if place == "rows" else []
    program = ["loop.py"] if place == "loop" else ["-m", "hvdtrain", "train", "mine.py:Task"]
    started = launcher("local" if ranks > 1 else "alone", ranks)
    status, output = run([*started, "python", *program, *options], tmp_path)
    assert status == (1 if place == "loop" else 2), output
    lines, expected = output.splitlines(), EXPECTED[place]
    for line in expected:
        assert sum(text.endswith(line) for text in lines) == 1, output
    assert [text for text in lines if "hvdtrain/" in text and "File" in text] == []
    assert output.count("Traceback (most recent call last)") <= 1
    if "losses" in place:
        assert "losses() failed in line 2 of sums.py (IndexError" in output
    if place in ("losses", "loop"):
        logs = [path.read_text() for path in (tmp_path / "runs" / "run" / "logs").glob("rank-*.log")]
        assert any(all(line in log for line in expected) for log in logs)
    if place == "loop":  # which fails on rank 0 only
        end = RunEnd.read(tmp_path / "runs" / "run")
        assert (end.status, end.rank, "IndexError" in end.reason) == ("failed", 0, True)


EXPECTED = {
    "first losses": ["in losses", "in total"],
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
        losses = model(numbers).sum(1)
        if run.rank == 0:
            losses = total(model(numbers))
        run.step(losses)
"""
FAILING_TASK = """import hvdtrain
import numpy as np
import torch
from sums import total

class Task:
    def __init__(self, after, bad_row=None):
        self.after, self.bad_row = after, bad_row

    def data(self):
        rows = np.zeros((64, 2), np.float32), np.zeros(64, np.int64)
        return rows if self.bad_row is None else Rows(rows, self.bad_row), rows

    def model(self):
        return torch.nn.Linear(2, 2)

    def losses(self, outputs, labels):
        return total(outputs) if hvdtrain.progress().step >= self.after else outputs.sum(1)

class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, bad):
        self.rows, self.bad = rows, bad

    def __len__(self):
        return len(self.rows[0])

    def __getitem__(self, number):
        assert number != self.bad
        return self.rows[0][number], self.rows[1][number]
"""
