"""What a run leaves in its folder, and what it shows."""

import contextlib
import json
import os
import pty
import resource
import time
from collections import defaultdict
from pathlib import Path

import pytest
from support.jobs import BIN, launcher, run, start, train, wait_for
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from hvdtrain.collectives.single_process import SingleProcess
from hvdtrain.errors import UserError
from hvdtrain.frameworks.devices import choose_device
from hvdtrain.runs import metrics


def test_a_run_s_folder(tmp_path):
    folder = train(tmp_path, "torch", "--epochs", "2", "--tensorboard", by="gloo", np=2)
    config = json.loads((folder / "config.json").read_text())
    assert config["config"]["epochs"] == 2
    assert config["ranks"] == 2
    assert {"torch", "horovod", "numpy", "python"} <= config["versions"].keys()
    assert config["host"]["cores"] >= 1
    kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert kinds.count("test") == 2
    assert "train" in kinds
    result = json.loads((folder / "result.json").read_text())
    assert sum(map(sum, result["confusion"])) == 360, "each test image once"
    correct = sum(row[i] for i, row in enumerate(result["confusion"]))
    assert result["accuracy"] == pytest.approx(correct / 360)
    assert len(result["per_class_accuracy"]) == 10
    assert (folder / "metrics.png").read_bytes().startswith(b"\x89PNG")
    losses = [one["loss"] for one in metrics.read(folder / "metrics.jsonl") if one["kind"] == "train"]
    assert events(folder)["train/loss"] == pytest.approx(losses)
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]


def events(folder: Path) -> dict[str, list[float]]:
    """What TensorBoard reads of a run."""
    (path,) = (folder / "tensorboard").iterdir()
    reader, found = PyRecordReader_New(str(path)), defaultdict(list)
    with contextlib.suppress(OutOfRangeError):  # its end, or a record that is cut
        while True:
            reader.GetNext()
            for value in Event.FromString(reader.record()).summary.value:
                found[value.tag].append(value.simple_value)
    return found


def test_records_that_the_disk_does_not_take_are_lost_and_said_once(tmp_path, caplog):
    """Files that may not grow: as on a full disk, which only root can mount."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = metrics.Writer(tmp_path, tensorboard=True)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
        for step in range(1000):
            writer.write("train", step, loss=float(step))
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(": training goes on")[0].rpartition("/")[2].split(" ", 1)[1] for line in told[:2]] == [
        "cannot be written (File too large)"
    ] * 2
    assert "record(s) that the disk did not take" in told[2] and len(told) == 3
    shown = events(tmp_path)["train/loss"]
    assert 100 < len(shown) < 1000 and shown == list(range(len(shown)))


def test_only_rank_0_speaks(tmp_path):
    status, output = run([*launcher("gloo", 2), "python", "-m", "hvdtrain.torch_lenet", "--max-steps", "2"], tmp_path)
    assert status == 0
    assert "[0]<stderr>" in output
    assert "[1]<" not in output
    words = ["python", "-m", "hvdtrain.torch_lenet", "--strategy", "single", "--max-steps", "2", "--quiet"]
    assert run(words, tmp_path) == (0, "")


def test_a_terminal_gets_a_progress_bar(tmp_path):
    master, terminal = pty.openpty()
    words = [str(BIN / "python"), "-m", "hvdtrain.torch_lenet", "--strategy", "single", "--epochs", "2"]
    process = start(words, tmp_path, stderr=terminal, TERM="xterm", COLUMNS="120")
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert process.wait() == 0
    process.stdout.close()
    assert b"images/s" in shown
    assert "━".encode() in shown


def test_a_killed_rank_ends_the_job_and_leaves_nothing(tmp_path):
    words = [*launcher("gloo", 2), "python", "-m", "hvdtrain.torch_lenet", "--name", "run", "--epochs", "500"]
    process = start(words, tmp_path)
    log, pids = tmp_path / "runs" / "run" / "metrics.jsonl", []
    while not log.exists() and process.poll() is None:
        time.sleep(0.1)
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                ours = os.getsid(int(entry)) and b"hvdtrain.torch_lenet\0--name\0run\0--epochs\x00500" in file.read()
            with open(f"/proc/{entry}/environ", "rb") as file:
                rank = b"HOROVOD_RANK=1\0" in file.read()
            folder = os.readlink(f"/proc/{entry}/cwd") == str(tmp_path)
        except (OSError, ValueError):
            continue
        if ours and folder:
            pids.append((int(entry), rank))
    victim = next(pid for pid, rank in pids if rank)
    os.kill(victim, 9)
    began = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0, output
    assert time.monotonic() - began < 30
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid, _ in pids), 10)


class ThirdOnItsHost(SingleProcess):
    local_rank = 2


def test_a_rank_without_a_gpu_is_told():
    assert choose_device("auto", True, 4, ThirdOnItsHost()) == "cuda:2"
    assert choose_device("cpu", True, 4, ThirdOnItsHost()) == "cpu"
    assert choose_device("auto", False, 0, SingleProcess()) == "cpu"
    with pytest.raises(UserError, match="local rank 2 has no GPU: 2 on this host"):
        choose_device("auto", True, 2, ThirdOnItsHost())
    with pytest.raises(UserError, match="sees no GPU"):
        choose_device("gpu", False, 0, SingleProcess())
