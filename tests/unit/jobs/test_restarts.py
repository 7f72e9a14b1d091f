"""When a job is restarted, with which program, and on which hosts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.untrusted import save_checkpoint

from hvdtrain.cli import launch
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Position
from hvdtrain.jobs import hosts, progress, restarts, sbatch
from hvdtrain.jobs.job import Host, Job, RestartPolicy
from hvdtrain.jobs.program import option_value, resumable, run_folder
from hvdtrain.jobs.restarts import Restarts, reduced
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.run_end import Failure, RunEnd

INVALID = [
    (("--restarts", "-1"), "--restarts -1 is invalid; give 0 or more"),
    (("--min-np", "1"), "--min-np 1 has no effect without --restarts or --elastic; give --restarts N as well"),
    (("--min-np", "5", "--restarts", "1"), "--min-np 5 is out of range; give 1 to 2"),
]


@pytest.mark.parametrize(("options", "sentence"), INVALID)
def test_invalid_options(options, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(["mpirun", "-n", "2", *options, "--", "true"])
    printed = capsys.readouterr().err
    assert (ended.value.code, sentence in printed) == (2, True), printed


def test_options_by_which_a_program_resumes():
    own = ("python", "-m", "hvdtrain.mxnet_lenet", "--runs", "/shared/my runs", "--name=a")
    assert resumable(own) == (*own, "--auto-resume")
    assert str(run_folder(resumable(own))) == "/shared/my runs/a"
    for command in (("python", "-m", "hvdtrain", "train"), ("/opt/venv/bin/hvdtrain", "train")):
        unnamed = resumable(command)
        assert unnamed[: len(command)] == command
        assert unnamed[-3] == "--name"
        assert unnamed[-2].startswith("job-")
        assert unnamed[-1] == "--auto-resume"
    other = ("python", "train.py", "--name", "a")
    assert run_folder(other) is None
    assert option_value(("--name", "a", "--name"), "--name") == ""
    with pytest.raises(UserError, match="give the run's --name"):
        resumable((*own, "--resume", "runs/a"))


def test_options_by_which_a_program_resumes_in_the_file_of_its_config(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('runs = "/shared"\nname = "a"\n')
    own = ("python", "-m", "hvdtrain", "train", "--config", str(file))
    assert resumable(own) == (*own, "--auto-resume")
    assert str(run_folder(resumable(own))) == "/shared/a"
    assert str(run_folder(resumable((*own, "--name", "b")))) == "/shared/b"
    assert option_value(("python", "train.py", "--config", str(file)), "--name") == ""
    file.write_text('runs = "~/runs"\nname = "~"\nauto_resume = true\n')
    assert run_folder(own) == Path.home() / "runs" / "~"
    file.write_text('name = "a"\nauto_resume = true\n')
    assert resumable(own) == own
    assert str(run_folder(own)) == "runs/a"
    file.write_text('name = "a"\nresume = "runs/b"\n')
    with pytest.raises(UserError, match="give the run's --name"):
        resumable(own)
    file.write_text("name =")  # each rank explains what is wrong
    assert resumable(own)[-1] == "--auto-resume"


TRAINING = (
    "python -m hvdtrain.torch_lenet",
    "python3.11 -X dev -W ignore -um hvdtrain.mxnet_lenet --epochs 3",
    "python -mhvdtrain train --framework torch",
    "/opt/venv/bin/hvdtrain train",
    "env OMP_NUM_THREADS=1 nice -n 5 /opt/venv/bin/python -B -m hvdtrain.tensorflow_lenet --data doctor",
    "python -m coverage run -m hvdtrain.torch_lenet",
    "python /srv/code/hvdtrain/torch_lenet.py",
)
OTHER = (
    "python -m hvdtrain doctor",
    "hvdtrain doctor",
    "hvdtrain bench --framework torch",
    "hvdtrain",
    "hvdtrain --version",
    "/opt/venv/bin/hvdtrain report runs/train",
    "nice python -um hvdtrain predict --resume runs/a train",
    "python -m hvdtrain bench -- python -m hvdtrain.torch_lenet",
    "python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet",
    "python -m hvdtrain.jobs.agent -- python -m hvdtrain.torch_lenet",
    "python train.py --name hvdtrain",
    "python -m train --runs hvdtrain --epochs 2",
    "x -m",
    "bash -c true",
)


@pytest.mark.parametrize("line", TRAINING)
def test_training_programs_get_the_options_by_which_they_resume(line):
    program = tuple(line.split())
    added = resumable(program)[len(program) :]
    assert (added[0], added[2]) == ("--name", "--auto-resume")
    assert sbatch_adds_options(program)


@pytest.mark.parametrize("line", OTHER)
def test_other_programs_get_no_options(line):
    program = tuple(line.split())
    assert resumable(program) == program
    assert not sbatch_adds_options(program)


def sbatch_adds_options(program):
    text = sbatch.script(launch.parse(["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--", *program]))
    return '--name "slurm-$SLURM_JOB_ID" --auto-resume)' in text


def run_attempts(monkeypatch, ends, limit, opened=None, pause=None):
    """How a job ends whose attempts end like this, and the messages that it printed.

    opened: the run that rank 0 opens in each attempt.
    """

    async def no_pause(_, seconds):
        return 0

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
    monkeypatch.setattr(restarts, "signal_within", pause or no_pause)
    made = Restarts(Job(("true",), 2), RestartPolicy(limit), supervise, said.append, signals=None)
    end = asyncio.run(made.run())
    return end, [str(message) for message in said if "restarting in" not in str(message)]


KILLED = RunEnd("failed", 137, Failure(rank=1, host="node1", status=-9))
FINISHED = RunEnd("finished")


def test_a_job_is_restarted_until_it_ends_well(monkeypatch):
    end, reported = run_attempts(monkeypatch, [KILLED, KILLED, FINISHED], limit=2)
    assert end == FINISHED
    assert reported == ["rank 1 on node1 was killed by SIGKILL"] * 2


def test_a_job_that_used_up_its_restarts_lists_its_attempts(monkeypatch):
    end, reported = run_attempts(monkeypatch, [KILLED, KILLED], limit=1)
    assert end == KILLED
    first, *lines = reported[-1].splitlines()
    assert first == "gave up, as --restarts 1 are used up; the attempts:"
    assert [line.partition(",")[0] for line in lines] == ["  1: 2 ranks", "  2: 2 ranks"]
    assert all(line.endswith("rank 1 on node1 was killed by SIGKILL") for line in lines)


@pytest.mark.parametrize(
    "end",
    [
        RunEnd("stopped", 75),
        RunEnd("stopped", 128 + signal.SIGTERM, Failure("ended by SIGTERM")),
        RunEnd("failed", 2, Failure("--lr -1: must be above 0", option="lr", rank=0, host="node1", status=2)),
        RunEnd("failed", 2, Failure("cannot start x", rank=0, host="node1", at_start=True)),
        RunEnd("failed", 1, Failure("loss is not finite", rank=0, host="node1", status=1, retry=False)),
    ],
)
def test_a_stopped_or_invalid_job_is_not_restarted(monkeypatch, end):
    assert run_attempts(monkeypatch, [end], limit=3)[0] == end


def test_a_user_error_of_the_first_attempt_is_reported_once(monkeypatch):
    end, reported = run_attempts(monkeypatch, [UserError("horovodrun cannot be started", "build it")], limit=3)
    assert (end.exit_status, reported) == (2, ["horovodrun cannot be started; build it"])


def test_a_user_error_of_a_later_attempt_is_not_the_last(monkeypatch):
    """Hosts that do not respond now may come back."""
    end, reported = run_attempts(monkeypatch, [KILLED, UserError("host2: no ssh"), FINISHED], limit=3)
    assert (end.exit_status, reported[1]) == (0, "host2: no ssh")


def test_a_missing_run_folder_fails_the_attempt_but_not_the_job(tmp_path, monkeypatch):
    """It disappears in the pause after the first attempt, and is back after the second: nothing starts from scratch."""
    folder, aside = tmp_path / "runs" / "run", tmp_path / "aside"

    def ends():
        for end in (KILLED, FINISHED):
            (folder / "heartbeats").mkdir(parents=True, exist_ok=True)
            save_checkpoint(folder / "checkpoints", position=Position(step=3))
            (folder / "heartbeats" / "rank-0.json").write_text(json.dumps({"step": 4, "time": time.time()}))
            yield end

    async def pause(_, seconds):
        here, there = (folder, aside) if folder.exists() else (aside, folder)
        here.rename(there)
        return 0

    end, reported = run_attempts(monkeypatch, ends(), 3, OpenedRun(str(folder), True), pause)
    assert end == FINISHED
    attempts = json.loads((folder / "attempts.json").read_text())
    assert [(one["checkpoint"], one["step"], one["status"]) for one in attempts] == [
        *((-1, 4, 137), (-1, -1, 2), (3, 4, 0))
    ]
    assert f"{folder} is missing, so that training would start from the beginning; restore it" in reported


def test_a_later_checkpoint_of_the_same_step_is_progress(tmp_path, monkeypatch):
    """Steps are renumbered when a restart has fewer ranks."""
    folder = tmp_path / "runs" / "run"
    failed = RunEnd("failed", 1, Failure("KeyError: 'x'", rank=0, host="node1", status=1))

    def ends():
        for checkpoint in (True, True, False, False):
            if checkpoint:
                save_checkpoint(folder / "checkpoints", keep=4, position=Position(step=3))
            yield failed

    end, reported = run_attempts(monkeypatch, ends(), 9, OpenedRun(str(folder), True))
    assert end == failed
    assert reported[-2].startswith("gave up, as the same rank failed twice in the same way, from the same checkpoint")
    assert [line.split(":")[0] for line in reported[-2].splitlines()[1:]] == ["  1", "  2", "  3", "  4"]
    assert f"resume with --resume {folder}" in reported[-1]


def test_a_run_that_is_not_resumed_is_only_reported(tmp_path, monkeypatch):
    """A program that trains without --auto-resume: its folder is known, and no attempt starts from there."""
    folder = tmp_path / "runs" / "run"
    save_checkpoint(folder / "checkpoints", position=Position(step=3))
    end, reported = run_attempts(monkeypatch, [KILLED] * 5, 4, OpenedRun(str(folder), False))
    assert end == KILLED and "--restarts 4 are used up" in reported[-2]
    assert f"resume with --resume {folder}" in reported[-1]
    assert RunEnd.read(folder).rank == 1 and not (folder / "attempts.json").exists()


def test_hosts_that_no_longer_respond_are_left_out(monkeypatch):
    """How ranks are distributed; tests/cluster has real hosts that stop responding."""
    job = Job(("true",), 4, hosts=(Host("a", 2), Host("b", 2), Host("c", 1)))
    silent, said = {"b"}, []
    answer = lambda names, access: [hosts.HostCheck(name, "no answer" if name in silent else "") for name in names]  # noqa: E731
    monkeypatch.setattr(restarts.hosts, "inspect", answer)
    smaller = reduced(job, 2, said.append)
    assert (smaller.ranks, smaller.hosts) == (3, (Host("a", 2), Host("c", 1)))
    assert said == ["continuing without b: no answer"]
    with pytest.raises(UserError, match=r"3 slot\(s\) are left for 4 ranks \(b: no answer\)"):
        reduced(job, 4, said.append)
    silent.clear()
    assert reduced(job, 4, said.append) == job


def test_the_last_step_is_that_of_this_attempt_by_any_clock(monkeypatch, tmp_path):
    """The clock of a shared folder may differ from this host's by minutes."""
    now, skew_s = time.time(), 600
    monkeypatch.setattr(progress, "file_system_time", lambda _: now + skew_s)
    (tmp_path / "heartbeats").mkdir()
    for rank, (step, age_s) in enumerate([(70, 200), (40, 20), (41, 10)]):
        path = tmp_path / "heartbeats" / f"rank-{rank}.json"
        path.write_text(json.dumps({"step": step}))
        os.utime(path, (now + skew_s - age_s, now + skew_s - age_s))
    assert progress.last_step(tmp_path, now - 100) == 41
    assert progress.last_step(tmp_path, now - 300) == 70
    assert progress.last_step(tmp_path, now - 1) is None
