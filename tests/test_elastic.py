"""Horovod Elastic: ranks are killed, added and removed, and the job ends at the weights of one undisturbed process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from cluster import wait_for
from conftest import ROOT, distance, finish, newest, run, start, train

from hvdtrain import metrics

LAUNCH = ["python", "-m", "hvdtrain", "launch", "horovodrun", "-n", "2"]
ELASTIC = ["--elastic", "--interface", "lo", "--host-discovery-script", "./hosts.sh"]
# Without momentum, which would make differences of rounding grow.
OPTIONS = ("--epochs", "2", "--momentum", "0", "--lr", "0.02", "--log-every", "2", "--device", "cpu")


class Job:
    """One elastic job on `localhost` and `127.0.0.1`, which Horovod takes for two hosts."""

    def __init__(self, folder: Path, framework: str, hosts: str) -> None:
        self.folder, self.run = folder, folder / "runs" / "run"
        (folder / "hosts.sh").write_text("#!/bin/sh\ncat hosts.txt\n")
        (folder / "hosts.sh").chmod(0o755)
        self.set_hosts(hosts)
        words = [*LAUNCH, *ELASTIC, "--min-np", "1", "--max-np", "2", "--"]
        program = [
            "python",
            str(ROOT / "tests" / "jobs.py"),
            "slowly",
            framework,
            "--elastic",
            "--name",
            "run",
            *OPTIONS,
        ]
        self.process = start([*words, *program], folder, HVDTRAIN_TEST_STEP_S="0.25")

    def set_hosts(self, hosts: str) -> None:
        (self.folder / "hosts.new").write_text(hosts.replace(" ", "\n") + "\n")
        (self.folder / "hosts.new").replace(self.folder / "hosts.txt")

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in children if one.name().startswith("python") and "slowly" in one.cmdline()]

    def wait_for(self, ranks: int) -> None:
        """Until so many train, and have made some steps together."""
        text = f"of {ranks} starts with"
        seen = len(self.log())
        wait_for(lambda: text in self.log()[seen:] or (seen == 0 and text in self.log()), 90, self.log)
        steps = self.steps()
        wait_for(lambda: self.steps() >= steps + 4, 60, self.log)

    def log(self) -> str:
        path = self.run / "logs" / "rank-0.log"
        return path.read_text() if path.exists() else ""

    def steps(self) -> int:
        path = self.run / "metrics.jsonl"
        return max((one["step"] for one in metrics.read(path)), default=0) if path.exists() else 0

    def end(self) -> str:
        """What it printed; its result must be that of one process."""
        _, output = finish(self.process, 180)
        assert (self.run / "result.json").exists(), output
        assert json.loads((self.run / "result.json").read_text())["steps"] == 46
        alone = train(self.folder, "torch", "--strategy", "single", "--name", "alone", *OPTIONS)
        assert distance(newest(self.run).weights, newest(alone).weights) < 1e-4
        return output


def test_a_killed_rank_and_a_new_host(tmp_path):
    job = Job(tmp_path, "torch", "localhost:1 127.0.0.1:1")
    job.wait_for(2)
    job.workers()[-1].send_signal(signal.SIGKILL)
    job.wait_for(1)
    job.set_hosts("localhost:2 127.0.0.1:2")  # the one on which no rank died gets a second one
    job.wait_for(2)
    assert "resumed from runs/run: epoch" in job.end()


def test_a_host_is_removed(tmp_path):
    job = Job(tmp_path, "tensorflow", "localhost:1 127.0.0.1:1")
    job.wait_for(2)
    job.set_hosts("localhost:1")
    job.wait_for(1)
    job.end()


def test_its_rendezvous_listens_on_the_interface_alone(tmp_path):
    """It executes what it is sent."""
    job = Job(tmp_path, "torch", "localhost:1 127.0.0.1:1")
    try:
        wait_for(lambda: len(job.workers()) == 2, 60, job.log)
        listening = {
            one.laddr.ip
            for process in psutil.Process(job.process.pid).children(recursive=True) + [psutil.Process(job.process.pid)]
            for one in process.net_connections("tcp4")
            if one.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
    finally:
        os.kill(job.process.pid, signal.SIGTERM)
        finish(job.process, 60)


WRONG = [
    (["--elastic", "--interface", "lo"], "give --host-discovery-script FILE, or two or more hosts by -H"),
    (["--elastic", "-H", "localhost:1,127.0.0.1:1"], "give --interface NAME, on which alone its rendezvous listens"),
    ([*ELASTIC[:3], "--host-discovery-script", "./none.sh"], "none.sh: it cannot be executed; chmod +x it"),
    ([*ELASTIC, "--min-np", "3"], "--min-np 3 --max-np 2: give numbers around -n 2"),
    ([*ELASTIC, "--restarts", "2"], "knows no --restarts"),
    ([*ELASTIC, "--mpi"], "it is Gloo's alone"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_wrong_options(tmp_path, options, sentence):
    (tmp_path / "hosts.sh").touch(0o755)
    status, output = run([*LAUNCH, *options, "--", "python", "-m", "hvdtrain.torch_lenet"], tmp_path)
    assert (status, sentence in output) == (2, True), output


def test_a_public_address_is_refused(monkeypatch, tmp_path, capsys):
    from hvdtrain import launch
    from hvdtrain.launch import elastic

    script = tmp_path / "hosts.sh"
    script.touch(0o755)
    words = ["horovodrun", "-n", "2", "--elastic", "--interface", "eth0", "--host-discovery-script", str(script)]
    program = ["--", "python", "-m", "hvdtrain.torch_lenet"]
    monkeypatch.setattr(elastic, "address_of", lambda name: {"eth0": "8.8.8.8"}[name])
    with pytest.raises(SystemExit) as end:
        launch.main([*words, "--dry-run", *program])
    assert end.value.code == 2
    assert "--interface eth0: 8.8.8.8 is a public address" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        launch.main([*words, "--dry-run", "--elastic-on-public-address", *program])
    assert end.value.code == 0
    assert capsys.readouterr().out.rstrip().endswith("python -m hvdtrain.torch_lenet --elastic")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hvdtrain.torch_lenet"], "--elastic: start by python -m hvdtrain launch horovodrun --elastic"),
        (["hvdtrain.mxnet_lenet"], "Horovod has it for PyTorch and TensorFlow"),
        (["hvdtrain.torch_lenet", "--strategy", "ddp"], "launch --restarts N starts all others again"),
    ],
)
def test_what_cannot_be_elastic(tmp_path, words, sentence):
    status, output = run(["python", "-m", *words, "--elastic"], tmp_path)
    assert (status, sentence in output) == (2, True), output
