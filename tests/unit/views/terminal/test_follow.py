"""hvdtrain watch of a folder that ranks write at the same time; signals and terminals need a process."""

import signal

from support.in_process import command
from support.jobs import finish, start
from support.live_runs import RunningRanks
from support.run_folders import write_beat, write_finished, write_records, write_run
from support.terminal import TerminalCommand

from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.run_view import read_runs
from hvdtrain.views.terminal.follow import job_status

WATCH = ["python", "-m", "hvdtrain", "watch"]


def test_watch_waits_for_a_run_and_shows_what_its_ranks_do(tmp_path):
    """It is drawn again after a change of the terminal's size, and ends with the status of the job."""
    terminal = TerminalCommand([*WATCH, "runs/run", "--wait"], tmp_path, 100, 30)
    folder = write_run(tmp_path / "runs" / "run", ranks=3)
    write_records(folder, 200)
    with RunningRanks(folder, 3) as ranks:
        terminal.wait_for_frame("training  run(.|\n)*step 200/400")
        ranks.slow = 2
        terminal.wait_for_frame("rank 2 is slow")
        terminal.resize(60, 24)
        terminal.wait_for_frame(r"(?m)\A(.{60}\n){23}.{60}\Z")
        ranks.silent, ranks.idle_s = frozenset([1]), 3.0
        terminal.wait_for_frame("waiting  run(.|\n)*no heartbeat\n?.* of rank 1 ")
    RunEnd("stopped", 75, Failure("asked to stop by SIGTERM")).write(folder)
    assert terminal.finish() == 75
    after = terminal.output.partition("\x1b[?1049l")[2]
    assert "stopped" in after and "asked to stop by SIGTERM" in after, "the last view stays"


def test_leaving_the_view_is_no_error(tmp_path):
    folder = write_run(tmp_path / "runs" / "run")
    with RunningRanks(folder, 2):
        for number, status in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
            terminal = TerminalCommand([*WATCH], tmp_path, 80, 24)
            terminal.wait_for_frame("run")
            terminal.process.send_signal(number)
            assert terminal.finish() == status
            assert terminal.output.rstrip().endswith("\x1b[?1049l"), "the terminal is as before, without a message"


def test_in_a_file_a_restart_is_followed_and_each_change_is_a_line(tmp_path):
    folder = write_run(tmp_path / "run")
    with RunningRanks(folder, 2):
        process = start([*WATCH, "run"], tmp_path)
        assert process.stdout.readline().startswith("training  step 1")
        failure = Failure("rank 1 on node1 was killed by SIGKILL", rank=1, host="node1", stands_alone=True)
        RunEnd("restarting", 137, failure, 4e9).write(folder)
        line = process.stdout.readline()
        assert line.startswith("restarting  ") and line.endswith("rank 1 on node1 was killed by SIGKILL\n")
        RunEnd.remove(folder)
        assert process.stdout.readline().startswith("training")
    RunEnd("finished").write(folder)
    status, output = finish(process)
    assert (status, output.split()[0]) == (0, "finished")


def test_a_run_that_was_lost_is_left(tmp_path):
    write_beat(write_run(tmp_path / "run"), 0, age_s=60)
    status, output = command(tmp_path, "watch", "run")
    assert status == 1 and output.startswith("failed  step 150/400  no heartbeat of any rank since 20")


def test_a_run_whose_folder_is_removed_is_left(tmp_path):
    folder = write_run(tmp_path / "run")
    with RunningRanks(folder, 2):
        process = start([*WATCH, "run"], tmp_path)
        assert process.stdout.readline().startswith("training  step 1")
    folder.rename(tmp_path / "moved")
    status, output = finish(process)
    assert status == 2 and "failed" not in output
    assert output.splitlines()[-1] == "hvdtrain: run: the run's folder was removed; watch another run"


def test_exit_status_of_the_job(tmp_path):
    folder = write_run(tmp_path / "run")
    for status, code, expected in (("finished", 3, 0), ("failed", 137, 137), ("hung", 0, 1), ("failed", 256, 1)):
        RunEnd(status, code).write(folder)
        assert job_status(read_runs([folder])[0]) == expected


def test_run_that_has_ended_or_is_not_there(tmp_path):
    write_finished(tmp_path / "runs" / "run")
    status, output = command(tmp_path, "watch", "runs")
    assert status == 0 and output.startswith("finished  step 400/400  ")
    status, output = command(tmp_path, "watch", "runs/rum")
    assert status == 2 and "no such folder (did you mean run?)" in output
    assert "--wait waits for a run that is not there yet" in output
    assert "2 runs: a terminal shows one; give one run" in command(tmp_path, "watch", "one", "two")[1]
