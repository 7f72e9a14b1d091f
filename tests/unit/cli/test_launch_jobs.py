"""launch status and launch cancel, with programs in place of Slurm's that answer as the real ones do."""

import json
import multiprocessing
import os
import re
import stat

import pytest

from hvdtrain.cli import launch
from hvdtrain.jobs.slurm import queue, submissions
from hvdtrain.jobs.slurm.submissions import Submission

SQUEUE = """\
#!/bin/sh
# Jobs are the lines of a file, with | between the fields.
[ -e {folder}/busy ] && rm {folder}/busy && exit 1
[ ! -e {folder}/down ] || {{ echo "squeue: error: Unable to contact slurm controller" >&2; exit 1; }}
for option; do case $option in --jobs=*) jobs=${{option#--jobs=}};; esac; done
grep -E "^($(echo "$jobs" | tr , '|'))\\|" {folder}/jobs | tr '|' '\\037'
[ -s {folder}/jobs ] || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
"""
SCANCEL = """\
#!/bin/sh
# Notes its command line, and ends the job, or with a file `deaf` only the second time.
# With a file `then-busy`, squeue fails once afterwards.
echo "$@" >>{folder}/scancelled
[ ! -e {folder}/then-busy ] || mv {folder}/then-busy {folder}/busy
for job; do :; done
[ ! -e {folder}/denied ] || {{ echo "scancel: error: Access/permission denied" >&2; exit 1; }}
[ -e {folder}/deaf ] && rm {folder}/deaf && exit 0
sed -i "/^$job|/s/RUNNING\\|PENDING/CANCELLED/" {folder}/jobs
"""
SACCT = """\
#!/bin/sh
echo "$@" | grep -o -e "--jobs=[0-9,]*" >>{folder}/accounts-asked
[ -e {folder}/accounts ] || {{ echo "Slurm accounting storage is disabled" >&2; exit 1; }}
tr '|' '\\037' <{folder}/accounts
"""
SBATCH = """\
#!/bin/sh
cat >{folder}/script
echo "a line of a site's plug-in"
echo "77;far"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with the file `jobs`, which squeue shows."""
    for name, text in (("squeue", SQUEUE), ("scancel", SCANCEL), ("sacct", SACCT), ("sbatch", SBATCH)):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "POLL_S", 0.01)
    (tmp_path / "jobs").touch()
    return tmp_path


def run(capsys, *words):
    """Exit status, standard output and standard error of launch."""
    with pytest.raises(SystemExit) as ended:
        launch.main([*words])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def line(job, state, task="N/A", reason="None", user=None, name="train"):
    user = user or queue.current_user()
    return f"{job}|{task}|{state}|{user}|1:02|1|{reason}|2026-01-02T03:04:05|node1|{name}\n"


def add(job, folder, **values):
    submissions.add(Submission(job, "train", str(folder), ["python", "x.py"], **values))


def opened(job, folder, **variables):
    """As the launcher in a batch job does it."""
    submissions.add_run(str(folder), {"SLURM_JOB_ID": job, "HVDTRAIN_RUN_NAME": f"slurm-{job}", **variables})


def test_states_reasons_and_steps(slurm, capsys):
    add("1", slurm)
    add("2", slurm)
    add("3", slurm, array="0-3", sweep="all")
    add("4", slurm)
    for job in ("1", "4"):
        opened(job, slurm / "runs" / f"slurm-{job}")
    lines = line("1", "RUNNING") + line("2", "PENDING", reason="Resources", name="a|b")
    lines += "".join(line("3", state, task) for task, state in enumerate(["RUNNING", "COMPLETED", "COMPLETED"]))
    (slurm / "jobs").write_text(lines + line("3", "PENDING", 3, "JobArrayTaskLimit"))
    for path, text in (("runs/slurm-1/heartbeats/rank-0.json", '{"step": 12}'), ("all/a/result.json", "{}"),
                       ("runs/slurm-4/end.json", '{"status": "failed", "reason": "a \\u001b loss"}')):  # fmt: skip
        (slurm / path).parent.mkdir(parents=True)
        (slurm / path).write_text(text)
    status, output, _ = run(capsys, "status")
    rows = [" ".join(row.split()) for row in output.splitlines()]
    assert (status, rows[0]) == (0, "job name state time nodes run")
    assert "1 train running 1:02 node1 runs/slurm-1, step 12" in rows
    assert any(
        row.startswith("2 train pending: it waits for nodes to become free; expected to start 2026-01-02")
        for row in rows
    )
    expected = "3 train 2 completed, 1 pending, 1 running: as many tasks of the array run as its % allows"
    assert any(row.startswith(expected) and row.endswith("all: 1 trial(s) complete") for row in rows), output
    assert any(row.startswith(r"4 train ended: failed: a \x1b loss") for row in rows), output
    tasks = json.loads(run(capsys, "status", "3", "--tasks", "--json")[1])
    assert [(one["id"], one["state"]) for one in tasks] == [
        ("3_0", "RUNNING"), ("3_1", "COMPLETED"), ("3_2", "COMPLETED"), ("3_3", "PENDING"),
    ]  # fmt: skip
    (task,) = json.loads(run(capsys, "status", "3_3", "--json")[1])
    assert (task["why"], task["command"]) == ("as many tasks of the array run as its % allows", ["python", "x.py"])


def test_old_jobs_come_from_accounts_and_many_ended_ones_are_hidden(slurm, capsys):
    for job in range(1, 14):
        add(str(job), slurm)
    fields = "0:05|1|None|2026-01-02T03:04:05|node1|train\n"
    (slurm / "accounts").write_text(f"1|CANCELLED by 0|{queue.current_user()}|{fields}2_[5-6]|PENDING|a|{fields}")
    (slurm / "jobs").write_text(line("2", "RUNNING"))
    rows = json.loads(run(capsys, "status", "--json")[1])
    assert [row["id"] for row in rows] == ["2", *map(str, range(4, 14))]
    shown = ",".join(map(str, range(4, 14)))
    assert (slurm / "accounts-asked").read_text() == f"--jobs={shown}\n", "not of all jobs that were ever submitted"
    rows = json.loads(run(capsys, "status", "--json", "--all")[1])
    assert [row["state"] for row in rows[:3]] == ["CANCELLED", "RUNNING", "ENDED"]
    assert rows[2]["why"] == "Slurm has no record of it any more"


def test_errors_of_status_and_cancel(slurm, capsys, monkeypatch):
    assert run(capsys, "status") == (0, "no job was submitted with launch sbatch --submit\n", "")
    (slurm / "jobs").write_text(line("5", "RUNNING", user="alice"))
    for command in ("status", "cancel"):
        assert "job 9: neither Slurm nor the launcher knows it" in run(capsys, command, "9")[2]
        assert "job 5 is of the user alice; give one of your own" in run(capsys, command, "5")[2]
        assert "'--nodes' is not the number" in run(capsys, command, "--", "--nodes")[2]
    assert run(capsys, "cancel")[0] == run(capsys, "cancel", "1", "--all")[0] == 2
    assert not (slurm / "scancelled").exists()
    (slurm / "down").touch()
    assert "squeue failed (squeue: error: Unable to contact slurm controller)" in run(capsys, "status", "5")[2]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "squeue is not on PATH" in run(capsys, "status")[2]


def without_seconds(output):
    """A busy machine takes longer."""
    return re.sub(r"after \d+ s", "after some s", output)


def test_cancel_asks_for_a_checkpoint_first(slurm, capsys):
    for job in ("1", "2", "3", "4"):
        add(job, slurm)
    jobs = [line("1", "RUNNING"), line("2", "PENDING"), line("3", "COMPLETED"), line("6", "RUNNING")]
    (slurm / "jobs").write_text("".join(jobs))
    status, output, _ = run(capsys, "cancel", "1", "2", "3", "4", "6")
    assert (status, sorted(without_seconds(output).splitlines())) == (0, [
        "1: ended after some s", "2: cancelled before it started", "3: had ended before (COMPLETED)",
        "4: had ended before (Slurm has no record of it any more)", "6: cancelled",
    ])  # fmt: skip
    assert (slurm / "scancelled").read_text() == "--batch --signal=TERM 1\n2\n6\n"


def test_cancel_ends_what_does_not_end_itself(slurm, capsys, monkeypatch):
    monkeypatch.setattr(queue, "WAIT_S", 0.1)
    add("1", slurm)
    (slurm / "jobs").write_text(line("1", "RUNNING"))
    (slurm / "deaf").touch()
    assert "there is no terminal; give --yes" in run(capsys, "cancel", "--all")[2]
    status, output, _ = run(capsys, "cancel", "--all", "--yes")
    assert (status, without_seconds(output)) == (
        0,
        "1: did not end when asked to; ended by scancel after some s\n",
    )
    assert run(capsys, "cancel", "--all") == (0, "no submitted job waits or runs\n", "")
    (slurm / "jobs").write_text(line("1", "RUNNING"))
    (slurm / "denied").touch()
    assert run(capsys, "cancel", "1", "--now")[:2] == (
        1, "1: cannot be cancelled (scancel: error: Access/permission denied)\n",
    )  # fmt: skip


def test_cancel_goes_on_when_slurm_does_not_answer_once(slurm, capsys):
    add("1", slurm)
    (slurm / "jobs").write_text(line("1", "RUNNING"))
    (slurm / "then-busy").touch()
    assert run(capsys, "cancel", "1") == (0, "1: ended after 0 s\n", "")
    assert not (slurm / "busy").exists() and not (slurm / "then-busy").exists()


def test_submitting_records_the_job(slurm, capsys, monkeypatch):
    words = ["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--job-name", "big", "--submit", "--"]
    train = ["python", "-m", "hvdtrain.torch_lenet", "--runs", "my runs"]
    assert run(capsys, *words, *train)[:2] == (0, "Submitted batch job 77 on cluster far\n")
    (one,), damaged = submissions.read()
    assert (one.job, one.cluster, one.name, one.command, damaged) == ("77", "far", "big", train, 0)
    assert one.run_folder() is None, "it has not started"
    opened("77", slurm / "my runs" / "slurm-77")
    submissions.add_run("/elsewhere", {"SLURM_JOB_ID": "77"})  # a job whose script is not ours
    (one,), _ = submissions.read()
    assert one.run_folder() == slurm / "my runs" / "slurm-77"
    assert stat.S_IMODE(submissions.path().stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(slurm / "jobs"))  # a file, below which nothing can be created
    status, output, error = run(capsys, *words, *train)
    assert (status, output) == (0, "Submitted batch job 77 on cluster far\n")
    assert "it is not recorded in submitted.jsonl (Not a directory)" in error


def _add_many(first):
    for number in range(first, first + 50):
        submissions.add(Submission(str(number), "x" * 3000, "/"))


def test_concurrent_writers_and_damaged_lines(slurm):
    processes = [multiprocessing.get_context("fork").Process(target=_add_many, args=(n * 100,)) for n in range(1, 5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found, damaged = submissions.read()
    assert (len(found), damaged) == (200, 0)
    with submissions.path().open("ab") as file:
        file.write(b'\xff\n[]\n{"job": "1"}\n{"job": 1, "name": "", "folder": ""}\nnull\n{"job": "8", "na')
    submissions.add(Submission("9", "after a line that was cut off", "/"))
    submissions.add(Submission("9", "the newest one of a number", "/"))
    found, damaged = submissions.read()
    assert ([one.name for one in found if one.job == "9"], damaged) == (["the newest one of a number"], 6)
