"""The screen of `watch` in terminals of any size, also of a folder that ranks write meanwhile; charts; and `show`."""

import io
import json
import re
import signal

import pytest
from rich.console import Console
from support.in_process import command
from support.jobs import finish, start
from support.live_runs import RunningRanks
from support.run_folders import write_beat, write_changes, write_finished, write_log, write_records, write_run
from support.terminal import TerminalCommand

from hvdtrain.runs.history import Curve
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.details import difference_lines, differences
from hvdtrain.views.run_view import RunFollower, read_runs
from hvdtrain.views.table import Output
from hvdtrain.views.terminal.follow import _on_screen, job_status
from hvdtrain.views.terminal.page import page_lines
from hvdtrain.views.terminal.screen import ChartLine, Shown, chart, screen_lines


def training_run(folder, ranks, slow=None):
    """A run whose ranks have just been seen twice; the others wait for the rank `slow`."""
    write_records(write_run(folder, ranks=ranks), 250)
    for rank in range(ranks):
        write_log(folder, rank, "epoch 1/4: train loss 1.5", "epoch 2/4: train loss 0.9")
        write_beat(folder, rank, age_s=0.5)  # else chance decides the speeds
    follower = RunFollower(folder)
    follower.look()
    for rank in range(ranks):
        shares = {} if slow is None or rank == slow else {"compute_s": 0.6, "communicate_s": 0.4}
        write_beat(folder, rank, number=2, **shares)
    return Shown.read(follower.look())


@pytest.mark.parametrize("size", [(60, 24), (80, 24), (120, 40), (200, 60), (40, 10), (20, 3)])
def test_screen_fits(tmp_path, size):
    width, height = size
    lines = screen_lines(training_run(tmp_path / "run", 2, slow=1), width, height)
    assert len(lines) <= height and max(line.cell_len for line in lines) <= width
    text = "\n".join(line.plain for line in lines)
    assert "training  run" in text
    assert "━" in text or height < 10
    if height >= 24:
        assert "rank 1 is slow: the others wait for it" in text
        assert "62%  step 250/400" in text and "0:00:0" in text
        assert "epoch 2/4: train loss 0.9" in text and "loss  train 0.65" in text
    if width == 200:
        assert "accuracy  test 0.83" in text and "80/20/0" in text


def test_of_many_ranks_those_with_remarks_are_shown_and_what_all_say_once(tmp_path):
    shown = training_run(tmp_path / "run", 64, slow=57)
    for rank in range(64):
        write_log(tmp_path / "run", rank, "the loss jumped", level="WARNING")
    write_log(tmp_path / "run", 5, "out of memory", level="ERROR")
    lines = [line.plain for line in screen_lines(Shown.read(shown.view), 80, 40)]
    text = "\n".join(lines)
    assert len(lines) <= 40
    (row,) = (line for line in lines if line.split()[:1] == ["57"])
    assert row.endswith("slow: the others wait for it") or "slow: the" in row
    ranks = sum(line.split()[:1] == [str(rank)] for line in lines for rank in range(64))
    assert f"and {64 - ranks} more ranks" in text
    assert text.count("epoch 2/4") == text.count("the loss jumped") == 1
    assert "rank 0: epoch 2/4" in text and "ranks 0-63: the loss jumped" in text and "rank 5: out of memory" in text


POINTS = Curve([1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([4.0, 3.0, 2.0, 1.0], [4.0, 1.0]),
        ([0.9765, 0.9690, 0.97, 0.97], [1.0, 0.9]),
        ([1.0] * 4, None),
        ([1e308, -1e308, 0.0, 1.0], None),
        ([5e-324, 1e-300, 1.0, 1e308], None),
    ],
    ids=["falls", "hardly changes", "is constant", "overflows", "is tiny"],
)
def test_charts_of_any_values(values, labels):
    """A score that hardly changes is not drawn over the whole height."""
    line = ChartLine("train", POINTS._replace(values=values), "cyan")
    name = "accuracy" if labels == [1.0, 0.9] else "loss"
    title, *rows, axis = (line.plain for line in chart(name, [line], 40, 8))
    assert len(rows) == 6 and max(map(len, [title, *rows, axis])) <= 40
    assert any(character > "⠀" for row in rows for character in row)
    assert axis.split() == ["epoch", "1", "4"] and title.startswith(name) and "  train " in title
    if labels:
        assert [float(row.split()[0]) for row in (rows[0], rows[-1])] == pytest.approx(labels, abs=0.03)
    if labels == [4.0, 1.0]:
        places = [min(column for column, mark in enumerate(row[7:]) if mark != " ") for row in rows]
        assert places == sorted(places) and places[0] <= 1 and places[-1] >= 24


def test_a_page_has_all_of_a_run(tmp_path):
    folder = write_finished(tmp_path / "run", lr=0.125)
    attempt = {"checkpoint": 3, "ranks": 2, "began": 1.8e9, "seconds": 5.5, "step": 12, "status": 137}
    (folder / "attempts.json").write_text(json.dumps([{**attempt, "ended": "rank 1 was killed"}]))
    finding = {"status": "fail", "text": "/dev/shm is full", "remedy": "enlarge it"}
    findings = [finding, {**finding, "status": "ok", "text": "well"}]
    (folder / "doctor.json").write_text(json.dumps({"findings": findings}))
    write_log(folder, 1, "the loss jumped", level="WARNING")
    for rank in range(2):
        write_beat(folder, rank, compute_s=0.0, communicate_s=0.0)  # without shares
        (folder / "heartbeats" / f"stacks-rank-{rank}.txt").write_text("Thread")
    page = command(tmp_path, "show", "run")[1]
    for text in (
        *("finished  run", "step 400/400", "--lr 0.125", "--epochs 4", "accuracy 0.875", "epoch_s 5"),
        *("rank 1 was killed", "fail: /dev/shm is full; enlarge it", "rank 1: the loss jumped", "numpy 1.23.5"),
        *("processor Z80", "id 0123456789abcdef", "loss  train 0.46", "stacks of rank 0-1"),
    ):
        assert text in page, text
    assert "well" not in page and "--momentum" not in page
    assert "--momentum 0.9" in command(tmp_path, "show", "run", "--all")[1]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_pages_and_differences_fit_the_terminal(tmp_path, width):
    one = write_finished(tmp_path / "fashion-mnist-torch-horovod-np2-20260502-101010", data="fashion-mnist")
    other = write_finished(tmp_path / "other", data="/a/long/folder/of/many/images/in/tar/shards/of/one/gigabyte/each")
    write_log(one, 0, "the loss jumped " * 20, level="WARNING")
    for rank in range(3):
        write_beat(one, rank, doing="a_file_with_a_long_name.py:123 in a_function_with_a_long_name")
    attempt = {"ranks": 2, "began": 1.8e9, "seconds": 5.5, "status": 1, "ended": "a reason " * 30}
    (one / "attempts.json").write_text(json.dumps([attempt]))
    views = read_runs([one, other])
    lines = page_lines(Shown.read(views[0]), width, all_options=True)
    assert max(line.cell_len for line in lines) <= width
    drawn = [line.plain for line in difference_lines([view.name for view in views], differences(views), width)]
    assert max(map(len, drawn)) <= width
    assert any("--data" in line and "fashion-mnist" in line for line in drawn)


def test_a_run_is_found_by_its_name(tmp_path):
    for name in ("first", "second"):
        write_finished(tmp_path / "runs" / name)
    for given, found in ((["first"], "first"), (["runs/first"], "first"), ([], "second")):
        assert f"finished  {found}" in command(tmp_path, "show", *given)[1]
    assert "frist: no such folder (did you mean runs/first?)" in command(tmp_path, "show", "frist")[1]


def test_differences(tmp_path):
    write_finished(tmp_path / "one", accuracy=0.8)
    path = write_finished(tmp_path / "other", accuracy=0.9, lr=0.25, strategy="single", ranks=1) / "config.json"
    config = json.loads(path.read_text())
    config["versions"]["numpy"] = "1.22.0"
    config["network"]["description"]["layers"][3]["outputs"] = 64
    config["network"]["description"]["layers"].insert(5, {"type": "dropout", "rate": 0.5})
    path.write_text(json.dumps(config))
    text = "\n".join(" ".join(line.split()) for line in command(tmp_path, "diff", "one", "other")[1].splitlines())
    for row in (
        *("options --strategy ring single", "options --lr 0.05 0.25", "versions numpy 1.23.5 1.22.0"),
        *("results accuracy 0.8 0.9 (+12 %)", "ranks and devices ranks 2 1", "network layer 6"),
        "network layer 4 conv outputs 50 kernel 5 conv outputs 64 kernel 5",
    ):
        assert row in text, row
    assert not any(name in text for name in ("--epochs", "python", "processor", "epoch_s", "--name", "layer 1 "))
    assert command(tmp_path, "diff", "one", "one") == (0, "one, one: nothing differs\n")
    assert "one run, and nothing to compare it with" in command(tmp_path, "diff", "one")[1]


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (200, 50), (80, 12)])
def test_what_stays_of_a_failed_run_has_its_headline(tmp_path, monkeypatch, size):
    """What stays on the screen, with the prompt of a shell below it, is no longer than the terminal."""
    shown = training_run(tmp_path / "run", 32)
    end = RunEnd("failed", 1, Failure("rank 1 was killed " * 20, rank=1, stands_alone=True))
    end.write(tmp_path / "run")
    output = Output()
    output.console = Console(file=io.StringIO(), width=size[0], height=size[1], force_terminal=True)
    _on_screen(iter([RunFollower(tmp_path / "run").look()] * 2), output)
    stays = output.console.file.getvalue().rpartition("\x1b[?1049l")[2]
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stays).splitlines()
    assert len(lines) < size[1] - 1 and lines[0].endswith("failed  run") and max(map(len, lines)) <= size[0]
    assert shown.view.state.name == "training"


@pytest.mark.parametrize("size", [(60, 24), (80, 24), (200, 50), (40, 10)])
def test_changes_of_ranks_are_shown(tmp_path, size):
    folder = write_run(tmp_path / "run", ranks=4, shards=16)
    write_records(folder, 250)
    write_changes(folder)
    for rank in range(4):
        write_log(folder, rank, "epoch 1/4: train loss 1.5")
        write_beat(folder, rank, age_s=40.0 * (rank == 2))
    shown = Shown.read(RunFollower(folder).look())
    lines = screen_lines(shown, *size)
    assert len(lines) <= size[1] and max(line.cell_len for line in lines) <= size[0]
    text = "\n".join(line.plain for line in lines)
    assert "3 of 4 ranks: rank 2 on node2 lost" in text
    if size[1] >= 24:
        assert "\nrank 2 on node2 lost at step 120 (was killed" in text and "lost at step 120\n" in text
        assert "1 rank lost, paused 0.31 s in all" in text
    if size[1] >= 50:
        assert "4 shards moved from rank 2 to ranks 0-1, 3 at step 120: rank 2 is lost" in text
    write_changes(folder, back=True)
    page = " ".join(" ".join(line.plain for line in page_lines(Shown.read(shown.view), 80, False)).split())
    assert "(was killed by SIGKILL); paused 0.31 s, 1 step repeated" in page and "node3 joined at step 140" in page


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
