"""The benchmark of slow links still runs. Its jobs need processes in network namespaces (as root)."""

import json
import subprocess

import pytest
from support.cluster import need
from support.jobs import ROOT, succeed
from support.stack import FASTEST


@pytest.mark.matrix
def test_a_cell_is_measured_and_its_hosts_are_removed(tmp_path):
    need(("ip", "tc", "sysctl"), "iproute2 procps")
    command = ["python", str(ROOT / "benchmarks" / "links" / "run.py"), "--part", "speed", "--links", "200/2ms"]
    command += ["--np", "2", "--tasks", "lenet", "--rows", f"{FASTEST}/horovod", "--output", "links"]
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    succeed(command, tmp_path, timeout_s=240)
    (record,) = [json.loads(line) for line in (tmp_path / "links" / "results.jsonl").read_text().splitlines()]
    assert 500 < record["sent_kb"] < 1200, "133,898 float32 from each of two ranks"
    # What is between them takes at least the bytes of a step at 200 Mbit/s, and twice the delay.
    assert record["measured_ms"] > record["sent_kb"] * 8 / 200 + 2 * 2
    assert f"| {FASTEST}/horovod |" in (tmp_path / "links" / "links.md").read_text()
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout == before
