"""`--timeline`. It needs jobs: spans are true to where the time of a framework goes, on all ranks."""

import math
import shutil
import subprocess

import pytest
from support.environment import script
from support.jobs import ROOT, finish, launcher, pids_of_ranks, several, start, succeed
from support.slowed import slowed
from support.traces import Trace

MATRIX = pytest.mark.matrix
FRAMEWORKS = ["torch", pytest.param("mxnet", marks=MATRIX), pytest.param("tensorflow", marks=MATRIX)]
TASKS = ROOT / "tests" / "support" / "tasks"
OPTIONS = ("--device", "cpu", "--log-every", "5", "--name", "run")
FIRST, LAST = 16, 36
"""Steps that are recorded, one of which ends an epoch of 23 steps."""
PARTS = {"data", "loop", "forward", "backward", "gradients", "update"}


def check(folder, ranks, first, last, parts, one_clock=True):
    """The timeline in a run's folder, whose ranks have all these steps, with these parts."""
    trace = Trace(folder / f"timeline-{first}-{last}.json")
    trace.check()
    assert list(trace.processes) == list(range(ranks))
    assert [clock["error_s"] == 0 for clock in trace.about["clocks"]] == [True, *[one_clock] * (ranks - 1)]
    for rank in range(ranks):
        steps = trace.steps(rank)
        assert list(steps) == [f"step {number}" for number in range(first, last)]
        found = {part.name for own in steps.values() for part in own}
        assert parts <= found, (parts, found)
    return trace


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_timeline_explains_the_steps_of_a_slowed_rank(tmp_path, framework):
    options = ("--max-steps", "38", "--timeline", f"{FIRST}:{LAST}", "--checkpoint-every", "30")
    command = [*launcher("local", 2), "python", "-m", f"hvdtrain.{framework}_lenet", *OPTIONS, *options]
    process, folder = start(command, tmp_path), tmp_path / "runs" / "run"
    with slowed(pids_of_ranks(folder, 2)[1], stopped_s=0.15, running_s=0.03):
        status, output = finish(process)
    assert status == 0, output
    parts = {"data", "step"} if framework == "tensorflow" else PARTS
    trace = check(folder, 2, FIRST, LAST, {*parts, "logging", "checkpoint", "evaluation"})
    summary = trace.about["summary"]
    assert summary[0].startswith(f"steps {FIRST} to {LAST - 1} took ")
    if framework != "tensorflow":  # whose step is one part, which all ranks end together
        assert summary[1].startswith("rank 1 on "), summary
        assert "was the last to begin gradients" in summary[1]
    assert all(f"timeline: {text}" in output for text in summary)
    assert f"timeline: {summary[0]}" in (folder / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize("framework", [pytest.param(one, marks=MATRIX) for one in ("torch", "mxnet")])
def test_parts_have_the_time_of_what_runs_in_them(tmp_path, framework):
    """Also where a framework computes in threads of its own."""
    command = ["python", "-m", "hvdtrain", "train", f"{TASKS}/sleeping.py:Sleeping", "--framework", framework]
    more = ("--strategy", "single", "--batch-size", "12", "--epochs", "1", "--timeline", "3:8", "--workers", "0")
    succeed([*command, *OPTIONS, *more], tmp_path, FRAMEWORK=framework)
    trace = check(tmp_path / "runs" / "run", 1, 3, 8, {"data", "forward", "backward", "update"})
    shortest = dict.fromkeys(("data", "forward", "backward", "update"), math.inf)
    for parts in trace.steps(0).values():
        for name in shortest:
            length_s = sum(part.end - part.begin for part in parts if part.name == name) / 1e6
            shortest[name] = min(shortest[name], length_s)
    # The steps whose parts were not delayed by other programs: less than what another part takes longer.
    for name, seconds in {"data": 0.02, "forward": 0.04, "backward": 0.08, "update": 0.0}.items():
        assert seconds - 0.001 <= shortest[name] < seconds + 0.02, (name, shortest)


SHIFT_S = 1000
SHIFTED = f"""
[ "$HOROVOD_RANK" = 1 ] && exec unshare --time --monotonic {SHIFT_S} "$@"
exec "$@"
"""


@pytest.mark.matrix
def test_clocks_that_differ_are_aligned(tmp_path):
    """As on two hosts: rank 1 has a monotonic clock of its own, in a namespace."""
    probe = ["unshare", "--time", "--monotonic", "1", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a time namespace (unshare --time)")
    program = script(tmp_path / "shifted", SHIFTED)
    train = ["python", "-m", "hvdtrain.torch_lenet", *OPTIONS, "--max-steps", "20"]
    succeed([*launcher("local", 2), str(program), *train, "--timeline", "6:16"], tmp_path)
    trace = check(tmp_path / "runs" / "run", 2, 6, 16, PARTS, one_clock=False)
    clock = trace.about["clocks"][1]
    assert abs(clock["offset_s"] - SHIFT_S) <= clock["error_s"]


@pytest.mark.parametrize(("framework", "script"), [("torch", "user_loop"), ("mxnet", "user_loop_gluon")])
@pytest.mark.matrix
def test_user_loops_have_a_timeline(tmp_path, framework, script):
    command = [*launcher("local", 2), "python", f"{ROOT}/tests/support/{script}.py", *OPTIONS, "--batch-size", "20"]
    succeed([*command, "--epochs", "2", "--timeline", "5:15"], tmp_path)
    check(tmp_path / "runs" / "run", 2, 5, 15, {*PARTS, "script", "evaluation"})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_runs_that_cannot_have_their_timeline(tmp_path, framework):
    """They train, and say why. A run that is resumed within the steps has the rest of them."""
    one = ("--strategy", "single", "--checkpoint-every", "4", "--device", "cpu")
    blocked = tmp_path / "runs" / "blocked"
    (blocked / "timeline-2-4.json" / "file").mkdir(parents=True)
    named = ("--name", "resumed", "--resume", "auto")
    trainings = [
        (*one, "--max-steps", "6", "--name", "beyond", "--timeline", "6:8"),
        (*one, "--max-steps", "6", "--name", "cut", "--timeline", "3:8"),
        (*one, "--max-steps", "6", "--name", "blocked", "--resume", "auto", "--timeline", "2:4"),
        (*one, "--max-steps", "4", *named),
        (*one, "--max-steps", "6", *named, "--timeline", "1:3"),
        (*one, "--max-steps", "9", *named, "--timeline", "3:8"),
    ]
    command = several(framework, trainings, "alone", 1)
    output = succeed(command, tmp_path, timeout_s=300)
    runs = tmp_path / "runs"
    assert "--timeline 6:8: this job makes none of these steps" in output
    assert list(Trace(runs / "cut" / "timeline-3-6.json").steps(0)) == ["step 3", "step 4", "step 5"]
    assert "--timeline 2:4 cannot be written (" in output
    assert "--timeline 1:3: this job makes none of these steps" in output
    assert [path.name for path in runs.glob("resumed/timeline-*")] == ["timeline-6-8.json"]
    resumed = Trace(runs / "resumed" / "timeline-6-8.json")
    assert list(resumed.steps(0)) == [f"step {number}" for number in range(6, 8)]
