"""An elastic job for tests and the fault suite, which kill, add and remove ranks."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import psutil

from hvdtrain.runs import metrics
from support.jobs import PROGRAMS, distance, finish, newest, start, train, wait_for

LAUNCH = ["python", "-m", "hvdtrain", "launch", "horovodrun", "-n", "2"]
ELASTIC = ["--elastic", "--interface", "lo", "--host-discovery-script", "./hosts.sh"]
# Without momentum, which would amplify rounding errors.
OPTIONS = ("--epochs", "2", "--momentum", "0", "--lr", "0.02", "--log-every", "2", "--device", "cpu")


class Job:
    """One elastic job on `localhost` and `127.0.0.1`, which are two hosts to Horovod."""

    def __init__(self, folder: Path, framework: str, hosts: str, **environment: str) -> None:
        self.folder, self.run = folder, folder / "runs" / "run"
        (folder / "hosts.sh").write_text("#!/bin/sh\ncat hosts.txt\n")
        (folder / "hosts.sh").chmod(0o755)
        self.set_hosts(hosts)
        words = [*LAUNCH, *ELASTIC, "--min-np", "1", "--max-np", "2", "--"]
        program = [
            "python",
            str(PROGRAMS),
            "slowly",
            framework,
            "--elastic",
            "--name",
            "run",
            *OPTIONS,
        ]
        self.process = start([*words, *program], folder, **{"HVDTRAIN_TEST_STEP_S": "0.25", **environment})

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """End the job if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            finish(self.process, 60)

    def set_hosts(self, hosts: str) -> None:
        (self.folder / "hosts.new").write_text(hosts.replace(" ", "\n") + "\n")
        (self.folder / "hosts.new").replace(self.folder / "hosts.txt")

    def workers(self) -> list[psutil.Process]:
        """The ranks' processes."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if self._is_worker(child)]

    @staticmethod
    def _is_worker(process: psutil.Process) -> bool:
        try:
            return process.name().startswith("python") and "slowly" in process.cmdline()
        except psutil.NoSuchProcess:  # Horovod's driver runs hosts.sh every second
            return False

    def listening_addresses(self) -> set[str]:
        """IPv4 addresses at which processes of the job accept connections."""
        launcher = psutil.Process(self.process.pid)
        connections: list[Any] = []
        for process in [launcher, *launcher.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                connections += process.net_connections("tcp4")
        return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}

    def wait_for(self, ranks: int) -> None:
        """Until that many ranks train and have completed some steps together."""
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

    def lose_a_rank_and_gain_a_host(self) -> None:
        """Horovod excludes the host where the rank died; the other one gets a second slot."""
        self.wait_for(2)
        self.workers()[-1].send_signal(signal.SIGKILL)
        self.wait_for(1)
        self.set_hosts("localhost:2 127.0.0.1:2")
        self.wait_for(2)

    def lose_a_host(self) -> None:
        self.wait_for(2)
        self.set_hosts("localhost:1")
        self.wait_for(1)

    def end(self) -> str:
        """Wait for the end of the job; its output. Its result must equal that of one process."""
        _, output = finish(self.process, 180)
        assert (self.run / "result.json").exists(), output
        assert json.loads((self.run / "result.json").read_text())["steps"] == 46
        alone = train(self.folder, "torch", "--strategy", "single", "--name", "alone", *OPTIONS)
        assert distance(newest(self.run).weights, newest(alone).weights) < 1e-4
        return output
