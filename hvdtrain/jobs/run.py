"""Runs a job: checks its hosts, then starts and supervises it, as often as its restart policy says."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs import hosts
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.job import Job, RestartPolicy
from hvdtrain.jobs.job_processes import CONTROL_VARIABLES
from hvdtrain.jobs.launchers import elastic
from hvdtrain.jobs.launchers.registry import build
from hvdtrain.jobs.launchers.settings import own_programs_first, passed_on
from hvdtrain.jobs.on_end import Notice
from hvdtrain.jobs.restarts import Restarts
from hvdtrain.jobs.result import Failure, JobResult
from hvdtrain.jobs.signals import Signals
from hvdtrain.jobs.supervisor import Supervisor
from hvdtrain.system import rank_info


def run(launcher: str, job: Job, policy: RestartPolicy, on_end: str = "") -> JobResult:
    """Run a job to its end. Each failure is printed on standard error as soon as it happens.

    on_end: a command to run afterwards. Raises UserError if the job cannot start. An elastic job replaces this process
    by horovodrun.
    """
    environment = {**own_programs_first(os.environ), rank_info.JOB: secrets.token_hex(8)}
    notice = Notice(on_end, job, environment[rank_info.JOB])
    try:
        result = _run(launcher, job, policy, environment)
    except UserError as error:
        notice.give(JobResult(error.exit_status, Failure.of_error(error)))
        raise
    notice.give(result)
    return result


def _run(launcher: str, job: Job, policy: RestartPolicy, environment: dict[str, str]) -> JobResult:
    hosts.check_hosts(hosts.other_hosts(job.hosts), job.ssh)
    if job.elastic:
        elastic.become_horovodrun(build(launcher, job, environment)[0], environment)
    if job.output_dir:
        _make_folder(job.output_dir)
    inherited = environment if launcher == "local" else {**passed_on(environment), **job.environment}

    console = Console(job.output_dir)

    async def attempts() -> JobResult:
        signals = Signals()

        async def supervise(job: Job) -> JobResult:
            specs = build(launcher, job, environment, CONTROL_VARIABLES)
            return await Supervisor(launcher, job, specs, inherited, console, signals).run()

        return await Restarts(job, policy, supervise, console.say, signals, environment[rank_info.JOB]).run()

    try:
        return asyncio.run(attempts())
    finally:
        Signals.ignore()
        console.flush()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the user only: output may hold anything
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be created ({error.strerror})", "give another folder") from None
