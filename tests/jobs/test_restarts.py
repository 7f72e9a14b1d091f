"""A job that fails is started again, goes on from its newest checkpoint, and ends at the same weights."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time

import pytest
from support.jobs import PROGRAMS, distance, finish, newest, run, start, train

from hvdtrain.errors import UserError
from hvdtrain.launch import hosts, restarts
from hvdtrain.launch.job import Host, Job
from hvdtrain.launch.program import resumable, run_folder, value
from hvdtrain.launch.supervisor import JobFailed

JOBS = str(PROGRAMS)
OPTIONS = ("--max-steps", "12", "--lr", "0.02", "--checkpoint-every", "3", "--device", "cpu")
NAMED = ("--name", "run", "--auto-resume")


def launch(launcher: str, ranks: int, *options: str) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", launcher, "-n", str(ranks), *options, "--"]


def attempts(folder) -> list[dict]:
    return json.loads((folder / "runs" / "run" / "attempts.json").read_text())


@pytest.mark.parametrize(
    ("framework", "by", "options"),
    [
        ("torch", "local", ("--strategy", "ring")),
        ("mxnet", "horovodrun", ("--strategy", "horovod")),
    ],
)
def test_a_killed_rank(tmp_path, framework, by, options):
    words = [*launch(by, 2, "--restarts", "2"), "python", JOBS, "die", framework, *options, *OPTIONS, *NAMED]
    status, output = run(words, tmp_path)
    assert status == 0, output
    assert "rank 1 on " in output
    assert "was killed by SIGKILL" in output
    assert "starting again in 1 s (1 of 2)" in output
    first, second = attempts(tmp_path)
    assert (first["status"], first["checkpoint"], second["status"], second["checkpoint"]) == (137, -1, 0, 3)
    straight = train(tmp_path, framework, *options, *OPTIONS, "--name", "straight", by="local", np=2)
    assert distance(newest(tmp_path / "runs" / "run").weights, newest(straight).weights) == 0


def test_a_step_that_always_fails(tmp_path):
    """The first attempt writes a checkpoint of step 3, and no other one comes further. (No framework: only files.)"""
    code = (
        "from pathlib import Path; Path('runs/run/checkpoints/step-00000003').mkdir(parents=True, exist_ok=True); 1/0"
    )
    status, output = run([*launch("local", 2, "--restarts", "9"), "python", "-c", code, *NAMED], tmp_path)
    assert status == 1, output
    assert "gave up, as 3 attempts in a row brought no newer checkpoint; the attempts:" in output
    assert [one["checkpoint"] for one in attempts(tmp_path)] == [-1, 3, 3, 3]
    assert [re.search(r"starting again in (\d+) s", line)[1] for line in output.splitlines() if "again in" in line] == [
        *("1", "1", "2")
    ]
    assert "  4: 2 ranks, from the checkpoint of step 3" in output


def test_an_option_that_is_wrong_is_not_tried_again(tmp_path):
    program = ["python", "-m", "hvdtrain.torch_lenet", "--lr", "-1"]
    status, output = run([*launch("local", 2, "--restarts", "3"), *program], tmp_path)
    assert status == 2, output
    assert "starting again" not in output


def test_a_job_told_to_end_is_not_started_again(tmp_path):
    program = ["python", "-c", "import time; print('up', flush=True); time.sleep(60)"]
    process = start([*launch("local", 1, "--restarts", "3"), *program], tmp_path)
    assert process.stdout.readline().strip().endswith("up")
    os.kill(process.pid, signal.SIGTERM)
    status, output = finish(process, 20)
    assert status == 128 + signal.SIGTERM, output
    assert "starting again" not in output


def test_a_pause_can_be_ended(tmp_path):
    process = start([*launch("local", 1, "--restarts", "9"), "python", "-c", "raise SystemExit(3)"], tmp_path)
    lines = iter(process.stdout.readline, "")
    next(line for line in lines if "starting again in 4 s (3 of 9)" in line)
    os.kill(process.pid, signal.SIGTERM)
    began = time.monotonic()
    status, output = finish(process, 20)
    assert time.monotonic() - began < 3
    assert status == 128 + signal.SIGTERM
    assert "asked to end between two attempts" in output
    assert "3: 1 ranks, from the beginning" in output


def test_a_program_that_is_not_ours_is_started_as_often_as_asked(tmp_path):
    program = ["python", "-c", "print('hello', flush=True); raise SystemExit(3)"]
    status, output = run([*launch("local", 1, "--restarts", "1"), *program], tmp_path)
    assert status == 3, output
    assert output.count("[0] hello") == 2
    assert "gave up, as --restarts 1 are used up; the attempts:" in output


WRONG = [
    (("--restarts", "-1"), "--restarts -1: give 0 or more"),
    (("--min-np", "1"), "--min-np 1: it tells with how few ranks to start again; give --restarts N as well"),
    (("--min-np", "5", "--restarts", "1"), "--min-np 5: give 1 to 2"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_wrong_options(tmp_path, options, sentence):
    status, output = run([*launch("mpirun", 2, *options), "true"], tmp_path)
    assert (status, sentence in output) == (2, True), output


def test_a_name_that_no_folder_can_have(tmp_path):
    """The rank says so, and it is not tried again."""
    program = ("python", "-m", "hvdtrain.torch_lenet", "--strategy", "single", "--name", "a" * 300)
    status, output = run([*launch("local", 1, "--restarts", "2"), *program], tmp_path)
    assert status == 2, output
    assert "cannot be made (File name too long); give another folder by --runs" in output
    assert "starting again" not in output
    assert "Traceback" not in output


def test_how_the_program_goes_on():
    own = ("python", "-m", "hvdtrain.mxnet_lenet", "--runs", "/shared/my runs", "--name=a")
    assert resumable(own) == (*own, "--auto-resume")
    assert str(run_folder(resumable(own))) == "/shared/my runs/a"
    unnamed = resumable(("python", "-m", "hvdtrain", "train"))
    assert unnamed[4] == "--name"
    assert unnamed[5].startswith("job-")
    other = ("python", "train.py", "--name", "a")
    assert resumable(other) == other
    assert run_folder(other) is None
    assert value(("--name", "a", "--name"), "--name") == ""
    with pytest.raises(UserError, match="give its --name"):
        resumable((*own, "--resume", "runs/a"))


def test_a_run_s_folder_that_is_gone_is_waited_for(tmp_path, monkeypatch, capsys):
    """It vanishes in the pause after the first attempt, and is back after the second: nothing begins anew."""
    folder, aside = tmp_path / "runs" / "run", tmp_path / "aside"
    outcomes = iter([JobFailed("rank 1 was killed", 137), 0])

    class Supervisor:
        told_to_end = False

        async def run(self):
            (folder / "checkpoints" / "step-00000003").mkdir(parents=True, exist_ok=True)
            (folder / "heartbeats").mkdir(exist_ok=True)
            (folder / "heartbeats" / "rank-0.json").write_text(json.dumps({"step": 4, "time": time.time()}))
            outcome = next(outcomes)
            if outcome:
                raise outcome
            return outcome

    async def pause(seconds):
        here, there = (folder, aside) if folder.exists() else (aside, folder)
        here.rename(there)
        return 0

    monkeypatch.setattr(restarts, "heard_within", pause)
    own = ("python", "-m", "hvdtrain.torch_lenet", "--runs", str(folder.parent), *NAMED)
    assert asyncio.run(restarts.Restarts(Job(own, 2), 3, 2, lambda _: Supervisor()).run()) == 0
    assert [(one["checkpoint"], one["step"], one["status"]) for one in attempts(tmp_path)] == [
        *((-1, 4, 137), (-1, -1, 2), (3, 4, 0))
    ]
    assert f"{folder} is gone, so training would begin anew: bring it back" in capsys.readouterr().err


def test_hosts_that_no_longer_answer(monkeypatch, capsys):
    """Which ranks go where; that hosts are really asked, and gone, is tested with real hosts."""
    job = Job(("true",), 4, hosts=(Host("a", 2), Host("b", 2), Host("c", 1)))
    silent = {"b"}
    answer = lambda names: [hosts.Answer(name, "no answer" if name in silent else "") for name in names]  # noqa: E731
    monkeypatch.setattr(restarts.hosts, "ask", answer)
    smaller = restarts.where_it_can(job, 2)
    assert (smaller.ranks, smaller.hosts) == (3, (Host("a", 2), Host("c", 1)))
    assert "going on without b: no answer" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"3 slot\(s\) are left for 4 ranks \(b: no answer\)"):
        restarts.where_it_can(job, 4)
    silent.clear()
    assert restarts.where_it_can(job, 4) == job
