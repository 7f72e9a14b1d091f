"""Ranks and hosts of an elastic job come and go: it ends with the result of one process."""

from __future__ import annotations

from support import elastic
from support.jobs import wait_for

from faults.suite import Row, Suite
from faults.watched_job import MARK, Mismatch, remaining_processes


def change_hosts(suite: Suite, launcher: str, framework: str) -> Row:
    """A rank is killed and a host added, or a host is removed; each sample is seen once."""
    folder = suite.new_folder()
    job = elastic.Job(folder, framework, "localhost:1 127.0.0.1:1", **{MARK: str(folder)})
    fault, inject = suite.random.choice(
        [("a rank is killed, a host added", job.lose_a_rank_and_gain_a_host), ("a host is removed", job.lose_a_host)]
    )
    with job:
        inject()
        job.end()
    wait_for(lambda: not remaining_processes(folder), 3, job.log, Mismatch)
    return Row(fault, f"{launcher} --elastic", framework, state="same number of samples, weights within 1e-4")
