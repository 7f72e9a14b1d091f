"""`bench links`. Its jobs need processes in network namespaces (as root), and a signal ends them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from support.cluster import need
from support.jobs import ROOT, finish, start, wait_for
from support.stack import FASTEST

from hvdtrain.errors import UserError
from hvdtrain.measure.bench.hosts import ETC, Speed, hosts, inside

LINKS = ("python", "-m", "hvdtrain", "bench", "links", "--np", "2", "--tasks", "lenet", "--rows", f"{FASTEST}/horovod",
         "--peers", str(ROOT / "benchmarks"), "--output", "links")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def needed():
    need(("ip", "tc", "sysctl"), "iproute2 procps")
    try:
        with hosts(1) as made:
            made.set_speed(Speed(10))
    except UserError as error:
        pytest.skip(str(error))


def spaces_of(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return [name for name in listed if name.startswith(f"hvdtrain-{pid}-")]


def test_a_fast_cell_is_predicted_and_measured(tmp_path):
    process = start([*LINKS, "--part", "speed", "--links", "200/2ms"], tmp_path)
    status, output = finish(process)
    assert status == 0, output
    assert output.index("    predicted ") < output.index("    measured ")
    records = [json.loads(line) for line in (tmp_path / "links" / "results.jsonl").read_text().splitlines()]
    (record,) = [record for record in records if record["part"] == "speed"]
    assert (record["row"], record["link"], record["np"]) == (f"{FASTEST}/horovod", "200/2ms", 2)
    assert 500 < record["sent_kb"] < 1200, "133,898 float32 from each of two ranks"
    # What is between them takes at least the bytes of a step at 200 Mbit/s, and twice the delay.
    assert record["measured_ms"] > record["sent_kb"] * 8 / 200 + 2 * 2
    assert not spaces_of(process.pid)
    assert not [path for path in ETC.glob("hvdtrain-*") if path.name.split("-")[1] == str(process.pid)]
    assert f"| {FASTEST}/horovod |" in (tmp_path / "links" / "links.md").read_text()
    assert (tmp_path / "links" / "links.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_the_hosts_and_ends_the_job(tmp_path, number):
    process = start([*LINKS, "--part", "curves", "--seeds", "1"], tmp_path)
    log = tmp_path / "links" / f"lenet-{FASTEST}-horovod-0-0.log"
    wait_for(log.exists, 60)
    assert len(spaces_of(process.pid)) == 3
    ranks = subprocess.run(["ip", "netns", "pids", f"hvdtrain-{process.pid}-0"], capture_output=True, text=True)
    process.send_signal(number)
    status, output = finish(process, 30)
    assert status == (143 if number == signal.SIGTERM else 130), output
    assert not spaces_of(process.pid)
    assert ranks.stdout.split()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks.stdout.split()), 10)


def test_what_a_killed_benchmark_left_is_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"hvdtrain-{ended.pid}-0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with hosts(1) as made:
        assert not spaces_of(ended.pid)
        assert set(spaces_of(os.getpid())) == {made.switch, *made.spaces}
        shown = subprocess.run([*inside(made.spaces[0]), "ip", "-brief", "addr"], capture_output=True, text=True)
        assert "10.78.41.1/24" in shown.stdout
    assert not spaces_of(os.getpid())
