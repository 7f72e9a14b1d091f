"""How a job ends whose ranks have stopped, whatever their scripts do then."""

from types import SimpleNamespace

import pytest

from hvdtrain.jobs.job_end import JobEnd
from hvdtrain.system.rank_info import RESUME
from hvdtrain.system.run_end import Failure

BY_SIGNAL, BY_FILE = (Failure("stopped", retry=again, stopped=True) for again in (True, False))
FAILED = Failure("failed")


@pytest.mark.parametrize(
    ("said", "ended", "requested", "queued_again", "expected"),
    [
        (BY_SIGNAL, 75, True, False, ("stopped", 75)),
        (BY_SIGNAL, 0, True, False, ("stopped", 75)),  # echo done
        (BY_SIGNAL, 2, True, False, ("stopped", 75)),  # make
        (BY_SIGNAL, -15, True, False, ("stopped", 75)),  # a shell that Slurm has signaled as well
        (BY_SIGNAL, 124, False, True, ("stopped", 75)),  # timeout
        (BY_FILE, 75, False, False, ("stopped", 75)),
        (BY_FILE, 75, False, True, ("stopped", 130)),
        (BY_FILE, 0, False, True, ("stopped", 130)),
        (BY_FILE, 75, True, True, ("stopped", 130)),
        (None, 75, True, True, ("stopped", 75)),
        (None, 75, False, True, ("finished", 0)),  # which `on_rank_failure` makes a failure
        (FAILED, 0, False, True, ("finished", 0)),
        (BY_SIGNAL, None, True, True, ("stopped", 0)),
    ],
)
def test_status_of_a_job_with_a_rank(said, ended, requested, queued_again, expected, monkeypatch):
    """After 75, a batch script queues the job again."""
    if queued_again:
        monkeypatch.setenv(RESUME, "requeue")
    ends = JobEnd(None)
    ends.ranks[0] = SimpleNamespace(failure=said, ended=ended)
    ends.requested = {10} if requested else set()
    result = ends.result()
    assert (result.status, result.exit_status) == expected
