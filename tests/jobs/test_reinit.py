"""Training several times in one process: Horovod is shut down and initialized again."""

import subprocess
import sys

import pytest
from support.jobs import ROOT, launcher, run
from support.stack import FASTEST, FRAMEWORKS

PROGRAM = ROOT / "tests" / "support" / "reinit.py"


def reinitialize(folder, framework, by, times, *late, ranks=2):
    command = [*launcher(by, ranks), "python", str(PROGRAM), framework, str(times), *late]
    status, output = run(command, folder, timeout_s=550)
    assert status == 0, output[-6000:]
    message = f"initialized {times} times, then: Horovod initialization failed: HTTP request failed"
    assert output.count(message) == ranks, output


def test_a_late_rank_is_not_looked_for_at_its_last_address(tmp_path):
    reinitialize(tmp_path, FASTEST, "local", 3, "late")


@pytest.mark.matrix
@pytest.mark.parametrize("by", ["gloo", "local"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_late_ranks_of_all_frameworks(tmp_path, framework, by):
    reinitialize(tmp_path, framework, by, 5, "late", ranks=4)


@pytest.mark.matrix
@pytest.mark.parametrize("by", ["gloo", "local"])
def test_500_times_on_busy_cores(tmp_path, by):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        reinitialize(tmp_path, "torch", by, 500)
    finally:
        for process in busy:
            process.kill()
            process.wait()
