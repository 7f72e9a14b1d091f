"""Runs a job: checks its hosts, then starts and supervises it, as often as its restart policy says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs import hosts
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.job import Job, RestartPolicy
from hvdtrain.jobs.job_processes import CONTROL_VARIABLES
from hvdtrain.jobs.launchers import build
from hvdtrain.jobs.launchers.horovodrun import become_horovodrun
from hvdtrain.jobs.launchers.settings import own_programs_first, passed_on
from hvdtrain.jobs.restarts import Restarts
from hvdtrain.jobs.signals import HANDLED, Signals
from hvdtrain.jobs.supervisor import Supervisor
from hvdtrain.system import on_end as on_end_command
from hvdtrain.system import rank_info
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.run_end import RunEnd

ON_END_LIMIT_S = 60.0
"""How long the command of --on-end may take."""


def run(launcher: str, job: Job, policy: RestartPolicy, on_end: str = "") -> RunEnd:
    """Run a job to its end. Each failure is printed on standard error as soon as it happens.

    on_end: a command to run afterwards. Raises UserError if the job cannot start. An elastic job replaces this process
    by horovodrun.
    """
    environment = {**own_programs_first(os.environ), rank_info.JOB: secrets.token_hex(8)}
    try:
        end, folder = _run(launcher, job, policy, environment)
    except UserError as error:
        _notify(on_end, RunEnd.of_exception(error), None)
        raise
    _notify(on_end, end, folder)
    return end


def _run(launcher: str, job: Job, policy: RestartPolicy, environment: dict[str, str]) -> tuple[RunEnd, Path | None]:
    """How the job ended, and the folder of its run; None where no rank has opened one."""
    hosts.check_hosts(hosts.other_hosts(job.hosts), job.ssh)
    if job.elastic:
        become_horovodrun(build(launcher, job, environment)[0], environment)
    if job.output_dir:
        _make_folder(job.output_dir)
    inherited = environment if launcher == "local" else {**passed_on(environment), **job.environment}

    console = Console(job.output_dir)

    async def attempts() -> tuple[RunEnd, Path | None]:
        signals = Signals()

        async def supervise(job: Job, opened: Callable[[OpenedRun], None]) -> RunEnd:
            specs = build(launcher, job, environment, CONTROL_VARIABLES)
            return await Supervisor(launcher, job, specs, inherited, console, signals, opened).run()

        restarts = Restarts(job, policy, supervise, console.say, signals)
        return await restarts.run(), restarts.folder

    try:
        return asyncio.run(attempts())
    finally:
        Signals.ignore()
        console.flush()


def _notify(command: str, end: RunEnd, folder: Path | None) -> None:
    """Run the command of --on-end, if there is one, after the job has ended.

    What fails is printed, and changes nothing.
    """
    if not command:
        return
    for number in HANDLED:  # a signal that is handled does not end this process, and may end the command's
        signal.signal(number, lambda *_: None)
    recorded = RunEnd.read(folder) if folder else None  # a rank that found a hang knows more
    problem = on_end_command.run(command, recorded if end.failure and recorded else end, folder, ON_END_LIMIT_S)
    if problem:
        with contextlib.suppress(OSError):
            print(f"hvdtrain: {problem}", file=sys.stderr, flush=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the user only: output may hold anything
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be created ({error.strerror})", "give another folder") from None
