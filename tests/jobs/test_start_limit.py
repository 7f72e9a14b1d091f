"""--start-timeout limits the start of a library: not sooner, and not much later; the missing rank is named."""

import time

import pytest
from support.jobs import PROGRAMS, launcher, run
from support.stack import FASTEST

MATRIX = pytest.mark.matrix
STRATEGIES = [
    pytest.param("mxnet", (), "rank 1 did not initialize Horovod within 4 s", marks=MATRIX),
    pytest.param("torch", ("--strategy", "ring"), "(rank 1 did not connect)", marks=MATRIX),
    pytest.param("torch", ("--strategy", "ddp"), "not all 2 ranks have started within 4 s", marks=MATRIX),
    pytest.param("tensorflow", (), "rank 1 did not initialize Horovod within 4 s", marks=MATRIX),
]


def job(folder, framework, options, limit_s, late_s):
    command = launcher("local", 2)
    command[-1:] = ["--start-timeout", str(limit_s), "--"]
    program = ["python", str(PROGRAMS), "late", framework, *options, "--max-steps", "2", "--name", "run"]
    return run([*command, *program], folder, HVDTRAIN_TEST_LATE_S=str(late_s))


@pytest.mark.parametrize(("framework", "options", "message"), STRATEGIES)
def test_rank_that_does_not_start_is_named(tmp_path, framework, options, message):
    began = time.monotonic()
    status, output = job(tmp_path, framework, options, limit_s=4, late_s=300)
    assert status == 1, output
    assert message in output
    assert "Traceback" not in output
    assert time.monotonic() - began < 100


@pytest.mark.matrix
def test_rank_may_be_later_than_the_libraries_allow(tmp_path):
    """Gloo itself waits for 30 s."""
    status, output = job(tmp_path, FASTEST, (), limit_s=120, late_s=45)
    assert status == 0, output
