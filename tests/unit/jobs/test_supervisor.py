"""Errors in the launcher itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

BROKEN = """
import sys
from hvdtrain.jobs.job import Job, RestartPolicy
from hvdtrain.jobs.run import run
from hvdtrain.jobs.supervisor import Supervisor

def fail(*_, **__):
    raise LookupError("a defect")

setattr(Supervisor, sys.argv[1], fail)
limit_s = 0.1 if sys.argv[1] == "_on_time_limit" else None
job = Job(("sleep", "0.3"), 1, interface="lo", time_limit_s=limit_s)
sys.exit(run("local", job, RestartPolicy()).exit_status)
"""


@pytest.mark.parametrize("handler", ["_register_rank", "_on_message", "_on_disconnect", "_on_time_limit"])
def test_a_handler_that_fails_ends_the_job(handler):
    """Otherwise it would wait for an end that it has missed."""
    done = subprocess.run([sys.executable, "-c", BROKEN, handler], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done.stderr
    assert "hvdtrain: the launcher failed: LookupError: a defect" in done.stderr
