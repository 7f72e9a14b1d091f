"""Jobs in a real Slurm: they end with the weights of one process, are queued again, and are cancelled.

They start processes because it is Slurm that starts, signals and queues them.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from support.cluster import Slurm
from support.cluster_jobs import LAUNCH, SLEEP, program, ranks_on, skip_if_the_folder_has_a_space
from support.jobs import PROGRAMS, distance, newest, train, wait_for
from support.report import table
from support.stack import FASTEST

from hvdtrain.system.rank_info import slurm_hosts
from hvdtrain.system.run_end import last_step

MATRIX = pytest.mark.matrix
LONG = ("python", "-m", f"hvdtrain.{FASTEST}_lenet", "--strategy", "single", "--epochs", "10000", "--log-every", "2")
"""Trains until it is ended."""


IN_SLURM = [
    pytest.param("mxnet", ["srun", "--nodes", "2"], (), marks=MATRIX),  # as the batch job below
    ("mxnet", ["srun", "--nodes", "2", "--mpi", "pmix"], ()),
    pytest.param("torch", ["srun", "--nodes", "2"], (), marks=MATRIX),
    pytest.param("torch", ["mpirun"], ("--strategy", "mpi"), marks=MATRIX),
    pytest.param("tensorflow", ["horovodrun"], (), marks=MATRIX),
    pytest.param("torch", ["srun", "--nodes", "2", "--interface", "eth0"], ("--strategy", "ddp"), marks=MATRIX),
    pytest.param("tensorflow", ["srun", "--nodes", "2"], ("--strategy", "multiworker"), marks=MATRIX),
    pytest.param("mxnet", ["srun", "--nodes", "2"], ("--strategy", "kvstore-dist"), marks=MATRIX),
]


@pytest.mark.guarantee("weights-of-one-process")
@pytest.mark.parametrize(("framework", "by", "options"), IN_SLURM)
def test_training_in_slurm_equals_one_process(slurm, tmp_path, one_process, framework, by, options):
    """In an allocation of two nodes, from its first node as a batch script runs there."""
    if "pmix" in by and slurm.run(["srun", "--mpi=pmix", "-n1", "true"])[0]:
        pytest.skip("this Slurm cannot load PMIx: apt-get install libpmix-dev")
    if by == ["horovodrun"]:
        skip_if_the_folder_has_a_space(by)
    inside = [*LAUNCH, *by, "-n", "2", "--", *program(framework, *options)]
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *inside]
    status, output = slurm.run(words, tmp_path)
    assert status == 0, output
    assert "2 rank(s) on cpu" in output
    assert distance(newest(tmp_path / "runs" / "run").weights, one_process(framework)) < 1e-5


def submit(slurm: Slurm, folder: Path, words: list[str], *options: str, **environment: str) -> str:
    """Submit a batch script; the job's number."""
    made = [*LAUNCH, "sbatch", "--nodes", "2", "--ranks-per-node", "1", *options, "--submit", "--", *words]
    status, output = slurm.run(made, folder, **environment)
    assert status == 0, output
    return re.search(r"Submitted batch job (\d+)", output)[1]


def log(folder: Path, job: str) -> str:
    path = folder / f"hvdtrain-{job}.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.guarantee("time-limit")
@pytest.mark.parametrize("signal_by", ["scancel", pytest.param("slurm", marks=MATRIX)])
def test_a_batch_job_resumes_after_its_time_limit(slurm, tmp_path, signal_by):
    """Before the limit the ranks write a checkpoint; the requeued job ends with the weights of an undisturbed one.

    Slurm sends the signal up to 30 s later than it could, by its clock, and scancel the same one at once.
    """
    slow = ["python", str(PROGRAMS), "slowly_at_first", FASTEST]
    steps = 90 if signal_by == "slurm" else 24  # half a second each, until the signal
    options = ["--max-steps", str(steps), "--lr", "0.02", "--device", "cpu", "--resume", "auto", "--name", "run"]
    # One minute is Slurm's shortest limit.
    limit = ["--time", "1", "--signal-before", "48"] if signal_by == "slurm" else ["--time", "10"]
    job = submit(slurm, tmp_path, [*slow, *options, "--log-every", "2"], *limit)
    run = tmp_path / "runs" / "run"
    if signal_by == "scancel":
        wait_for(lambda: (run / "metrics.jsonl").exists() and last_step(run), 60, lambda: log(tmp_path, job))
        assert slurm.run(["scancel", "--batch", "--signal=USR1", job])[0] == 0
    slurm.wait_for_state(job, "COMPLETED", 180, lambda: log(tmp_path, job))
    stopped = re.search(r"was asked to stop by SIGUSR1; the checkpoint of step (\d+)", log(tmp_path, job))
    assert stopped and int(stopped[1]) < steps, log(tmp_path, job)
    undisturbed = train(
        tmp_path, FASTEST, *options[:6], "--strategy", "ring", "--name", "undisturbed", by="local", np=2
    )
    assert newest(run).position.step == steps
    assert distance(newest(run).weights, newest(undisturbed).weights) < 1e-6


@pytest.mark.guarantee("killed-rank")
def test_scancel_and_a_killed_rank_in_slurm(slurm, hosts, tmp_path):
    words = ["python", "-c", SLEEP]
    job = submit(slurm, tmp_path, words)
    wait_for(lambda: log(tmp_path, job).count("] up") == 2, 30, lambda: log(tmp_path, job))
    (victim,) = ranks_on(hosts, "host2")
    os.kill(victim, signal.SIGKILL)
    slurm.wait_for_state(job, "FAILED", 10, lambda: log(tmp_path, job))
    assert "rank 1 on host2 was killed by SIGKILL; ending the others" in log(tmp_path, job)
    assert not any(hosts.programs("time.sleep(600)").values())
    job = submit(slurm, tmp_path, words)
    wait_for(lambda: log(tmp_path, job).count("] up") == 2, 30, lambda: log(tmp_path, job))
    assert slurm.run(["scancel", job])[0] == 0
    slurm.wait_for_state(job, "CANCELLED", 30, lambda: log(tmp_path, job))
    wait_for(lambda: not any(hosts.programs("time.sleep(600)").values()), 15, lambda: str(hosts.programs("sleep")))


SURROUNDINGS = {
    "SBATCH_TIMELIMIT": "1", "SBATCH_JOB_NAME": "other", "SBATCH_NO_REQUEUE": "1", "SBATCH_SIGNAL": "USR2@5",
    "SBATCH_PARTITION": "nowhere", "SBATCH_OUTPUT": "/dev/null", "SBATCH_EXPORT": "NONE",
    "SLURM_WAIT": "1", "SLURM_WORKING_DIR": "/",
}  # fmt: skip
"""Variables by which Slurm's commands would do something else than the launcher's options ask for."""
ENDS_LATE = "import os, time; rank = int(os.environ['RANK']); time.sleep(3 * rank)"


@pytest.mark.parametrize(
    "options",
    [["--via", "srun"], *(pytest.param(words, marks=MATRIX) for words in (["--via", "mpirun"], ["--survive"]))],
)
def test_variables_of_the_shell_do_not_change_what_options_ask_for(slurm, tmp_path, options):
    """Not the job, not the ranks' variables and folder, nor that one may end later than another."""
    code = f"{ENDS_LATE}; print(os.getcwd(), os.environ['WORD'], flush=True)"
    given = ["--time", "7", "--partition", "main", "--env", "WORD=a b", *options]
    job = submit(slurm, tmp_path, ["python", "-c", code], *given, **SURROUNDINGS)
    shown = slurm.run(["scontrol", "show", "job", job, "--oneliner"])[1].split()
    assert {"JobName=hvdtrain", "TimeLimit=00:07:00", "Partition=main", "Requeue=1"} <= {*shown}
    slurm.wait_for_state(job, "COMPLETED", 40, lambda: log(tmp_path, job))
    for rank in (0, 1):
        assert f"[{rank}] {tmp_path} a b\n" in log(tmp_path, job)


STOPS = """
import signal, sys, time

def stop(*_):
    # Slurm signals this process, and the agent hands its own signal on, perhaps when Python no longer handles any.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.exit(75)

signal.signal(signal.SIGUSR1, stop)
print("up", flush=True)
time.sleep(600)
"""
ENDS = [
    pytest.param("srun", "", "FAILED"),
    pytest.param("mpirun", "", "FAILED", marks=MATRIX),
    pytest.param("srun", "scancel --batch --signal=USR1", "PENDING", marks=MATRIX),
    pytest.param("srun", "scancel --signal=USR1", "PENDING", marks=MATRIX),  # the ranks themselves
    pytest.param("mpirun", "scancel --batch --signal=USR1", "PENDING", marks=MATRIX),
    pytest.param("srun", "scontrol requeue", "PENDING", marks=MATRIX),
    pytest.param("mpirun", "scontrol requeue", "PENDING", marks=MATRIX),
    pytest.param("srun", "scancel", "CANCELLED", marks=MATRIX),
    pytest.param("srun", "scancel --batch --signal=TERM", "CANCELLED", marks=MATRIX),
]


@pytest.mark.parametrize(("via", "asked_by", "state"), ENDS)
def test_only_a_stop_that_was_asked_for_is_queued_again(slurm, tmp_path, via, asked_by, state):
    """A program that ends with 75 by itself would be queued again for ever."""
    words = ["python", "-c", STOPS if asked_by else "raise SystemExit(75)"]
    # Commands of the script take no options from variables: squeue would find no job that runs.
    others = {"SQUEUE_STATES": "PENDING", "SCANCEL_INTERACTIVE": "1"}
    job = submit(slurm, tmp_path, words, "--via", via, **others)
    if asked_by:
        wait_for(lambda: log(tmp_path, job).count("] up") == 2, 30, lambda: log(tmp_path, job))
        assert slurm.run([*asked_by.split(), job])[0] == 0
    # A job that is queued again begins after a while.
    slurm.wait_for_state(job, state, 30, lambda: log(tmp_path, job))
    if not asked_by:
        assert "ended with exit status 75" in log(tmp_path, job)


IN_A_SCRIPT = [
    pytest.param("scancel --batch --signal=USR1", "PENDING"),
    pytest.param("scancel", "CANCELLED", marks=MATRIX),  # Slurm signals the scripts as well
    pytest.param("touch", "CANCELLED"),
    pytest.param("scancel --batch --signal=TERM", "CANCELLED", marks=MATRIX),
]


@pytest.mark.parametrize(("asked_by", "state"), IN_A_SCRIPT)
def test_a_request_reaches_training_in_a_script(slurm, tmp_path, asked_by, state):
    """Only the time limit queues the job again: the file STOP ends it for good."""
    job = submit(
        slurm, tmp_path, ["bash", "-c", '"$@"; echo done', "bash", *LONG], "--ranks-per-node", "1", "--nodes", "1"
    )
    run = tmp_path / "runs" / f"slurm-{job}"
    wait_for(lambda: (run / "metrics.jsonl").exists() and last_step(run), 60, lambda: log(tmp_path, job))
    if asked_by == "touch":
        (run / "STOP").touch()
    else:
        assert slurm.run([*asked_by.split(), job])[0] == 0
    slurm.wait_for_state(job, state, 30, lambda: log(tmp_path, job))
    step = re.search(r"asked to stop by .*; the checkpoint of step (\d+) is written", log(tmp_path, job))
    assert step and newest(run).position.step == int(step[1]), log(tmp_path, job)


IN_A_TERMINAL = """
import os, pty, sys
if not (forked := pty.fork())[0]:
    os.execvp("srun", ["srun", "-n", "2", "--pty", *sys.argv[1:]])
os.write(forked[1], b"hvdtrain train --strategy single; hvdtrain launch local -n 1 -- echo job\\nexit\\n")
try:
    while data := os.read(forked[1], 4096):
        os.write(1, data)
except OSError:
    pass
"""


def wait_for_states(slurm: Slurm, folder: Path, job: str, *expected: str, seconds: float = 60) -> None:
    """Wait until both tasks of an array have these states."""

    def states() -> list[str]:
        return [slurm.state(f"{job}_{task}") for task in range(2)]

    wait_for(lambda: states() == [*expected], seconds, lambda: f"{states()} {log(folder, f'{job}_0')}", every_s=0.5)


@MATRIX
def test_a_shell_of_srun_is_no_rank_and_launches_jobs(slurm, tmp_path):
    _, output = slurm.run([sys.executable, "-c", IN_A_TERMINAL, "bash", "--norc"], tmp_path)
    assert "srun --pty started this shell as one of 2 tasks" in output and "\njob" in output, output
    code = "from hvdtrain.system.rank_info import detect; print(detect().rank, detect().size)"
    _, output = slurm.run([sys.executable, "-c", IN_A_TERMINAL, "python", "-c", code], tmp_path)
    assert "0 2" in output, output


def test_an_array_trains_a_sweep(slurm, tmp_path):
    """Each task trains one of two trials, both write one table, and a task is queued again by its own number."""
    options = ["--array", "0-1", "--sbatch", "--comment='a # \"b\"'", "--nodes", "1"]
    sweep = ["hvdtrain", "sweep", "--set", "batch-size=32,64", "--output", "all"]
    training = ["--framework", FASTEST, "--strategy", "single", "--max-steps", "2"]
    job = submit(slurm, tmp_path, [*sweep, "--", "train", *training], *options)
    assert 'Comment=a # "b"' in slurm.run(["scontrol", "show", "job", job])[1]

    wait_for_states(slurm, tmp_path, job, "COMPLETED", "COMPLETED", seconds=90)
    assert {path.name for path in tmp_path.glob("*.log")} == {f"hvdtrain-{job}_{task}.log" for task in range(2)}
    assert "batch-size=64,seed=0" in (tmp_path / "all" / "report" / "report.md").read_text()
    assert not list(tmp_path.glob("all/*.log"))
    assert slurm.run([sys.executable, "-m", "hvdtrain", "sweep", "--table", "--output", "all"], tmp_path)[0] == 0
    assert {row["option:batch-size"] for row in table(tmp_path / "all" / "report")} == {"32", "64"}


def test_a_job_that_is_cancelled_writes_a_checkpoint_and_is_not_queued_again(slurm, tmp_path):
    """By the commands that the submission prints."""
    options = ["--nodes", "1", "--ranks-per-node", "1", "--submit", "--job-name", "long"]
    status, output = slurm.run([*LAUNCH, "sbatch", *options, "--", *LONG], tmp_path)
    assert status == 0, output
    show, cancel = re.findall(r"(squeue --jobs=\d+|scancel --batch --signal=TERM \d+)", output)
    assert " long " in slurm.run(show.split())[1]
    job = cancel.split()[-1]
    run = tmp_path / "runs" / f"slurm-{job}"
    wait_for(lambda: (run / "metrics.jsonl").exists(), 60, lambda: log(tmp_path, job))
    wait_for(lambda: last_step(run), 20)
    assert slurm.run(cancel.split())[0] == 0
    slurm.wait_for_state(job, "CANCELLED", 60, lambda: log(tmp_path, job))
    assert newest(run).position.step > 0


@MATRIX
def test_scancel_and_requeue_concern_one_task_of_an_array(slurm, tmp_path):
    """The last task has the number of the whole array. Slurm's own scancel does not queue it again either."""
    job = submit(slurm, tmp_path, list(LONG), "--array", "0-1", "--nodes", "1")
    runs = [tmp_path / "runs" / f"slurm-{job}_{task}" for task in (0, 1)]
    wait_for(lambda: all((run / "metrics.jsonl").exists() for run in runs), 60, lambda: log(tmp_path, f"{job}_0"))

    slurm.run(["scancel", "--batch", "--signal=USR1", f"{job}_1"])
    wait_for_states(slurm, tmp_path, job, "RUNNING", "PENDING")
    slurm.run(["scancel", f"{job}_0"])
    wait_for_states(slurm, tmp_path, job, "CANCELLED", "RUNNING")
    wait_for(lambda: "resumed from" in (runs[1] / "logs" / "rank-0.log").read_text(), 60)
    slurm.run(["scancel", "--batch", "--signal=TERM", f"{job}_1"])
    wait_for_states(slurm, tmp_path, job, "CANCELLED", "CANCELLED")


def test_node_lists_are_expanded_as_slurm_does(slurm):
    for nodes in ("host[1-2]", "a[01-03,7],c", "r[1-2]n[8-10]"):
        _, output = slurm.run(["scontrol", "show", "hostnames", nodes])
        assert slurm_hosts(nodes) == output.split()
