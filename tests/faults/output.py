"""The launcher's own output goes to a full disk, to a pipe that nobody reads, or to one that is closed."""

from __future__ import annotations

import subprocess

from support.jobs import ROOT, start

from faults.suite import Row, Suite
from faults.watched_job import MARK, STEP_S, WatchedJob

REDIRECTIONS = {"a full disk": "> /dev/full 2>&1", "a closed pipe": "2>&1 | true", "nobody": "2>&1 | sleep 30"}


class RedirectedJob(WatchedJob):
    """A job whose output a shell redirects."""

    redirection = ""

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        environment = {MARK: str(self.folder), STEP_S: "0.1", "PYTHONPATH": str(ROOT)}
        line = '"$@" ' + self.redirection + "; exit ${PIPESTATUS[0]}"
        return start(["bash", "-c", line, "bash", *command], self.folder, **environment)


def full_output(suite: Suite, launcher: str, framework: str) -> Row:
    """The job must end at the same weights, whatever becomes of its output."""
    where, redirection = suite.random.choice(sorted(REDIRECTIONS.items()))
    job = type("Job", (RedirectedJob,), {"redirection": redirection})(suite.new_folder(), launcher, framework)
    job.end(0)
    suite.check_weights(job)
    return Row(f"the launcher prints to {where}", launcher, framework)
