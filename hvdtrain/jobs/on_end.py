"""--on-end of the launcher: it runs a command after the last attempt of a job."""

from __future__ import annotations

import contextlib
import signal
import sys

from hvdtrain.jobs import attempts
from hvdtrain.jobs.job import Job
from hvdtrain.jobs.result import JobResult
from hvdtrain.jobs.signals import HANDLED
from hvdtrain.system import on_end
from hvdtrain.system.run_end import RunEnd

LIMIT_S = 60.0
"""How long the command may take."""


class Notice:
    """Runs the command of --on-end, if there is one.

    job_id: what ranks get as HVDTRAIN_JOB.
    """

    def __init__(self, command: str, job: Job, job_id: str) -> None:
        self._command, self._job, self._job_id = command, job, job_id

    def give(self, result: JobResult) -> None:
        """Run it after the job has ended; what fails is printed, and changes nothing."""
        if not self._command:
            return
        for number in HANDLED:  # a signal that is handled does not end this process, and may end the command's
            signal.signal(number, lambda *_: None)
        folder = attempts.folder_of_job(self._job.program, self._job_id)
        recorded = RunEnd.read(folder) if folder else None  # a rank that found a hang knows more
        end = recorded if result.failure and recorded else result.end
        problem = on_end.run(self._command, end, folder, LIMIT_S)
        if problem:
            with contextlib.suppress(OSError):
                print(f"hvdtrain: {problem}", file=sys.stderr, flush=True)
