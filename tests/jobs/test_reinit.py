"""Training several times in one process: Horovod is shut down and initialized again."""

import pytest
from support.jobs import ROOT, launcher, succeed
from support.stack import FASTEST, FRAMEWORKS

PROGRAM = ROOT / "tests" / "support" / "reinit.py"


def reinitialize(folder, framework, by, times, *late, ranks=2):
    command = [*launcher(by, ranks), "python", str(PROGRAM), framework, str(times), *late]
    output = succeed(command, folder, timeout_s=550)
    message = f"initialized {times} times, then: Horovod initialization failed: HTTP request failed"
    assert output.count(message) == ranks, output


def test_a_late_rank_is_not_looked_for_at_its_last_address(tmp_path):
    reinitialize(tmp_path, FASTEST, "local", 3, "late")


@pytest.mark.matrix
@pytest.mark.parametrize("by", ["gloo", "local"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_late_ranks_of_all_frameworks(tmp_path, framework, by):
    reinitialize(tmp_path, framework, by, 5, "late", ranks=4)
