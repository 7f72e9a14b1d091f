"""When a job is restarted, with which program, and on which hosts."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.untrusted import save_checkpoint

from hvdtrain import api
from hvdtrain.cli import launch
from hvdtrain.cli.launch_options import parse
from hvdtrain.config.options import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Position
from hvdtrain.jobs import event_loop, memberships, run
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job, reduced
from hvdtrain.jobs.run import Restarts
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.record import auto_resumed_folder
from hvdtrain.system import agent_pipe, rank_info, run_end
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.rank_info import RESUME, RUN_NAME
from hvdtrain.system.run_end import Failure, RunEnd, last_step
from hvdtrain.training.process import as_launched


def test_variables_by_which_training_resumes(monkeypatch):
    """Any program gets them; they are set for the ranks, and no argument is changed."""
    monkeypatch.delenv(RUN_NAME, raising=False)
    program = ("python", "train.py", "--name", "a")
    job = launch.describe(parse(["local", "-n", "2", "--restarts", "1", "--", *program]))
    assert (job.program, job.environment[RESUME]) == (program, "restarts")
    assert job.environment[RUN_NAME].startswith("job-")
    assert not launch.describe(parse(["local", "-n", "2", "--", *program])).environment
    assert launch.resume_variables({RUN_NAME: "slurm-1"})[RUN_NAME] == "slurm-1", "in a batch script"


def test_no_two_jobs_share_a_run_by_its_default_name(monkeypatch):
    """Also jobs that start in the same second, on hosts that share the folder."""
    monkeypatch.setattr(time, "strftime", lambda *_: "20260131-120000")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    assert len({launch.resume_variables({})[RUN_NAME] for _ in range(20)}) == 20
    assert len({api.launch("task.py:Task").folder for _ in range(20)}) == 20


LAUNCHED = [
    ({}, {}, ("", False, None)),
    ({}, {RUN_NAME: "job-1", RESUME: "restarts"}, ("job-1", True, None)),
    ({}, {RUN_NAME: "slurm-1"}, ("slurm-1", False, None)),
    ({"name": "a"}, {RUN_NAME: "job-1", RESUME: "requeue"}, ("a", True, None)),
    ({"resume": "auto"}, {RUN_NAME: "slurm-1"}, ("slurm-1", True, None)),
    ({"resume": Path("b")}, {RUN_NAME: "slurm-1", RESUME: "requeue"}, ("", False, Path("b").absolute())),
    ({"name": "a", "resume": Path("b")}, {RUN_NAME: "slurm-1"}, ("a", False, Path("b").absolute())),
    # They contradict the launcher.
    ({"resume": Path("b")}, {RESUME: "restarts"}, "resume"),
    ({"name": "a"}, {RUN_NAME: "slurm-1_2", "SLURM_ARRAY_TASK_ID": "2"}, "name"),
]


@pytest.mark.parametrize(("options", "variables", "expected"), LAUNCHED)
def test_options_of_training_under_the_launcher(options, variables, expected, monkeypatch):
    set_only(monkeypatch, variables)
    try:
        runtime = as_launched(RuntimeOptions(**options))
    except UserError as error:
        assert error.option == expected
    else:
        assert (runtime.name, runtime.auto_resume, runtime.resumed) == expected


def set_only(monkeypatch, variables):
    for name in (RUN_NAME, RESUME, "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_each_training_of_a_program_has_a_run_of_its_own(tmp_path, monkeypatch):
    """A script that trains twice: the second training neither continues the first one's run nor fails on its folder."""
    set_only(monkeypatch, {RUN_NAME: "slurm-1", RESUME: "requeue"})
    monkeypatch.setenv(rank_info.JOB, "a job")

    def folders(start):
        monkeypatch.setenv(agent_pipe.VARIABLE, start)
        for _ in range(2):
            folder = auto_resumed_folder(RuntimeOptions(runs=tmp_path, name="slurm-1", resume="auto"))
            with RunLock() as lock:
                lock.acquire(folder)
            yield folder.name

    assert list(folders("7:1")) == list(folders("7:2")) == ["slurm-1", "slurm-1-2"]


def run_attempts(ends, limit, opened=None, pause=None):
    """How a job ends whose attempts end like this, and the messages that it printed.

    opened: the run that rank 0 opens in each attempt. pause: called with the seconds of each pause.
    """

    class NoSignals:
        async def during(self, work):
            await work

        async def within(self, seconds):
            if pause:
                pause(seconds)

    async def supervise(job, on_opened):
        end = next(remaining)
        if opened:
            on_opened(opened)
        if isinstance(end, UserError):
            raise end
        if end.failure:
            said.append(end.failure)
        return end

    remaining, said = iter(ends), []
    made = Restarts(Job(("true",), 2, restarts=limit), supervise, said.append, NoSignals())
    end = asyncio.run(made.run())
    return end, [str(message) for message in said if "restarting in" not in str(message)]


KILLED = RunEnd("failed", 137, Failure(rank=1, host="node1", status=-9))
FINISHED = RunEnd("finished")


SILENT = UserError("host2: no ssh")


@pytest.mark.parametrize(
    ("ends", "limit", "status", "expected"),
    [
        ([KILLED, KILLED, FINISHED], 2, 0, [KILLED.reason] * 2),
        ([UserError("horovodrun cannot be started", "build it")], 3, 2, ["horovodrun cannot be started; build it"]),
        # Hosts that do not respond now may come back.
        ([KILLED, SILENT, FINISHED], 3, 0, [KILLED.reason, "host2: no ssh"]),
        # A stopped or invalid job is not restarted.
        ([RunEnd("stopped", 75)], 3, 75, []),
        ([RunEnd("stopped", 128 + 15, Failure("ended by SIGTERM"))], 3, 128 + 15, ["ended by SIGTERM"]),
        ([RunEnd("failed", 2, Failure("--lr -1", option="lr", rank=0, host="a", status=2))], 3, 2, None),
        ([RunEnd("failed", 2, Failure("cannot start x", rank=0, host="a", at_start=True))], 3, 2, None),
        ([RunEnd("failed", 1, Failure("loss is NaN", rank=0, host="a", status=1, retry=False))], 3, 1, None),
    ],
)
def test_a_job_is_restarted_until_it_ends_well(ends, limit, status, expected):
    end, reported = run_attempts(ends, limit)
    assert end.exit_status == status and expected in (None, reported)


def test_a_job_that_used_up_its_restarts_lists_its_attempts():
    end, reported = run_attempts([KILLED, KILLED], limit=1)
    assert end == KILLED
    first, *lines = reported[-1].splitlines()
    assert first == "gave up, as --restarts 1 are used up; the attempts:"
    assert [line.partition(",")[0] for line in lines] == ["  1: 2 ranks", "  2: 2 ranks"]
    assert all(line.endswith(KILLED.reason) for line in lines)


@pytest.mark.parametrize(("age_s", "status"), [(0, "hung"), (10**9, "failed")])
def test_of_a_hang_the_ranks_know_more_but_not_those_of_an_earlier_job(tmp_path, age_s, status):
    folder = tmp_path / "runs" / "run"

    def ends():
        (folder / "heartbeats").mkdir(parents=True)
        RunEnd("hung", 1, Failure("rank 1 holds up the others", rank=1)).write(folder)
        os.utime(folder / "end.json", (time.time() - age_s,) * 2)
        yield RunEnd("failed", 1, Failure("no step", rank=0, host="node1", status=1))

    run_attempts(ends(), 0, OpenedRun(str(folder), False))
    assert RunEnd.read(folder).status == status


def test_a_missing_run_folder_fails_the_attempt_but_not_the_job(tmp_path):
    """It disappears in the pause after the first attempt, and is back after the second: nothing starts from scratch."""
    folder, aside = tmp_path / "runs" / "run", tmp_path / "aside"

    def ends():
        for end in (KILLED, FINISHED):
            (folder / "heartbeats").mkdir(parents=True, exist_ok=True)
            save_checkpoint(folder / "checkpoints", position=Position(step=3))
            (folder / "heartbeats" / "rank-0.json").write_text(json.dumps({"step": 4, "time": time.time()}))
            yield end

    def pause(_):
        here, there = (folder, aside) if folder.exists() else (aside, folder)
        here.rename(there)

    end, reported = run_attempts(ends(), 3, OpenedRun(str(folder), True), pause)
    assert end == FINISHED
    attempts = json.loads((folder / "attempts.json").read_text())
    assert [(one["checkpoint"], one["step"], one["status"]) for one in attempts] == [
        *((-1, 4, 137), (-1, -1, 2), (3, 4, 0))
    ]
    assert f"{folder} is missing, so that training would start from the beginning; restore it" in reported


def test_a_later_checkpoint_of_the_same_step_is_progress(tmp_path):
    """Steps are renumbered when a restart has fewer ranks."""
    folder = tmp_path / "runs" / "run"
    failed = RunEnd("failed", 1, Failure("KeyError: 'x'", rank=0, host="node1", status=1))

    def ends():
        for checkpoint in (True, True, False, False):
            if checkpoint:
                save_checkpoint(folder / "checkpoints", keep=4, position=Position(step=3))
            yield failed

    end, reported = run_attempts(ends(), 9, OpenedRun(str(folder), True))
    assert end == failed
    assert reported[-2].startswith("gave up, as the same rank failed twice in the same way, from the same checkpoint")
    assert [line.split(":")[0] for line in reported[-2].splitlines()[1:]] == ["  1", "  2", "  3", "  4"]
    assert f"resume with --resume {folder}" in reported[-1]


def test_three_attempts_without_a_newer_checkpoint_are_enough(tmp_path):
    """Longer and longer pauses are between them, in which the run's end says that it is restarted."""
    folder, pauses = tmp_path / "runs" / "run", []

    def ends():
        save_checkpoint(folder / "checkpoints", position=Position(step=3))
        for number in range(9):
            yield RunEnd("failed", 1, Failure(f"process {number}", rank=0, host="node1", status=1))

    def pause(seconds):
        assert (ended := RunEnd.read(folder)) and (ended.status, ended.rank) == ("restarting", 0)
        pauses.append(seconds)

    end, reported = run_attempts(ends(), 9, OpenedRun(str(folder), True), pause)
    assert (end.exit_status, pauses) == (1, [1, 1, 2])
    assert reported[-2].startswith("gave up, as 3 attempts in a row wrote no newer checkpoint; the attempts:")
    assert "  4: 2 ranks, from the checkpoint of step 3" in reported[-2]
    attempts = json.loads((folder / "attempts.json").read_text())
    assert [one["checkpoint"] for one in attempts] == [-1, 3, 3, 3]


def test_a_run_that_is_not_resumed_is_only_reported(tmp_path):
    """A program that trains without --resume auto: its folder is known, and no attempt starts from there."""
    folder = tmp_path / "runs" / "run"
    save_checkpoint(folder / "checkpoints", position=Position(step=3))
    end, reported = run_attempts([KILLED] * 5, 4, OpenedRun(str(folder), False))
    assert end == KILLED and "--restarts 4 are used up" in reported[-2]
    assert f"resume with --resume {folder}" in reported[-1]
    assert RunEnd.read(folder).rank == 1 and not (folder / "attempts.json").exists()


@pytest.mark.parametrize("message", ["does not respond", "cannot be used (Input/output error)"])
@pytest.mark.parametrize("function", ["newest_checkpoint", "last_step", "write_atomically"])
def test_a_folder_that_does_not_respond_keeps_no_job(tmp_path, monkeypatch, function, message):
    """As on a file server that is gone, or fails; its accesses wait in threads of their own."""

    def access(*_):
        if "error" in message:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        waited.append(answered.wait(30))

    monkeypatch.setattr(run, "FILES_S", 0.2)
    answered, waited, folder = threading.Event(), [], tmp_path / "runs" / "run"
    save_checkpoint(folder / "checkpoints", position=Position(step=3))
    monkeypatch.setattr(run, function, access)
    end, reported = run_attempts([KILLED] * 3, 2, OpenedRun(str(folder), True))
    assert end == KILLED and not waited
    said = sum(message in line for line in reported)
    assert said == 1 if "respond" in message else bool(said) == (function != "write_atomically")
    answered.set()


def test_hosts_that_no_longer_respond_are_left_out():
    """How ranks are distributed; tests/cluster has real hosts that stop responding."""
    job = Job(("true",), 4, hosts=(Host("a", 2), Host("b", 2), Host("c", 1)))
    silent, said = {"b"}, []
    answers = lambda: {name: UserError("no answer") if name in silent else None for name, _ in job.hosts}  # noqa: E731
    smaller = reduced(replace(job, min_ranks=2), answers(), said.append)
    assert (smaller.ranks, smaller.hosts) == (3, (Host("a", 2), Host("c", 1)))
    assert said == ["continuing without b: no answer"]
    with pytest.raises(UserError, match=r"3 slot\(s\) are left for 4 ranks \(b: no answer\)"):
        reduced(job, answers(), said.append)
    silent.clear()
    assert reduced(job, answers(), said.append) == job


@pytest.mark.parametrize("asked", [True, False])
def test_hosts_are_checked_beside_the_event_loop(monkeypatch, asked):
    """A host that does not answer keeps neither the loop nor a request to stop waiting."""
    answered = threading.Event()
    monkeypatch.setattr(run.hosts, "inspect", lambda *_: answered.wait(30) and {})
    monkeypatch.setattr(memberships, "FIRST_PAUSE_S", 0.01)

    async def supervise(job, opened):
        return KILLED

    async def restart():
        restarts = Restarts(Job(("true",), 2, restarts=1), supervise, said.append, event_loop.Signals())
        asyncio.get_running_loop().call_later(1, os.kill if asked else answered.set, *[os.getpid(), 15] * asked)
        return await restarts.run()

    said = []
    end = asyncio.run(restart())
    answered.set()
    assert end == (replace(KILLED, status="stopped", exit_status=128 + 15) if asked else KILLED)


def test_the_last_step_is_that_of_this_attempt_by_any_clock(monkeypatch, tmp_path):
    """The clock of a shared folder may differ from this host's by minutes."""
    now, skew_s = time.time(), 600
    monkeypatch.setattr(run_end, "file_system_time", lambda _: now + skew_s)
    (tmp_path / "heartbeats").mkdir()
    for rank, (step, age_s) in enumerate([(70, 200), (40, 20), (41, 10)]):
        path = tmp_path / "heartbeats" / f"rank-{rank}.json"
        path.write_text(json.dumps({"step": step}))
        os.utime(path, (now + skew_s - age_s, now + skew_s - age_s))
    assert last_step(tmp_path, now - 100) == 41
    assert last_step(tmp_path, now - 300) == 70
    assert last_step(tmp_path, now - 1) is None
    metrics = tmp_path / "metrics.jsonl"  # many steps may follow the last heartbeat of a rank that is killed
    metrics.write_text('{"kind": "train", "step": 60}\n{"kind": "train", "step": 55, "loss": 1}\n{"kind": "tr')
    for age_s, expected in ((5, 55), (200, 41)):
        os.utime(metrics, (now + skew_s - age_s, now + skew_s - age_s))
        assert last_step(tmp_path, now - 100) == expected
