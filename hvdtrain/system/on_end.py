"""--on-end: a command of the user's that is told how a run or a job ended, through its environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.system import credentials, rank_info
from hvdtrain.system.processes import describe_status
from hvdtrain.system.run_end import RunEnd, run_id
from hvdtrain.system.text import printable

REASON_CHARACTERS = 4000
OF_RANKS = re.compile(
    r"(HOROVOD|OMPI|PMIX|PMI|PRTE)_\w+|MASTER_(ADDR|PORT)|MPI_LOCAL\w+|LOCAL_WORLD_SIZE"
    r"|HVDTRAIN_(TOKEN|TOKEN_FILE|AGENT_PIPE|SUPERVISOR|VARIABLES_FILE|LAUNCHER|JOB|RUN_NAME|RESUME|ELASTIC)"
)
"""Variables by which a program knows that it is a rank, and the job's own secrets: the command is no rank."""


def run(command: str, end: RunEnd, folder: Path | None, limit_s: float) -> str:
    """Run the command in a shell; why it failed, or an empty string. It is killed after limit_s seconds.

    What it is told is in its environment only, so that no text from a run becomes a part of the command. folder: the
    run's; None where it is not known, as for programs that are not hvdtrain's.
    """
    environment = {**_inherited(os.environ), **variables(end, folder)}
    try:
        process = subprocess.Popen(
            [*_limit(limit_s), "/bin/sh", "-c", command],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"--on-end cannot be started ({error})"
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"the command of --on-end did not end within {limit_s:g} s, and was killed"
    return f"the command of --on-end {describe_status(status)}" if status else ""


def _limit(limit_s: float) -> list[str]:
    """The beginning of a command line that ends the command where this process was killed before it could."""
    timeout = shutil.which("timeout")
    return [timeout, "--signal=KILL", f"{limit_s + 5:g}"] if timeout else []


def variables(end: RunEnd, folder: Path | None) -> dict[str, str]:
    """What the command is told; a variable that does not apply is empty."""
    reason = printable(credentials.removed(end.reason))[:REASON_CHARACTERS]
    return {
        "HVDTRAIN_STATUS": end.status,
        "HVDTRAIN_EXIT_STATUS": str(end.exit_status),
        "HVDTRAIN_REASON": reason,
        "HVDTRAIN_RUN": str(folder.absolute()) if folder else "",
        "HVDTRAIN_RUN_ID": run_id(folder) if folder else "",
        "HVDTRAIN_RANK": "" if end.rank is None else str(end.rank),
    }


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    names_of_ranks = {name for names in rank_info.VARIABLES.values() for name in names}
    return {
        name: value
        for name, value in environment.items()
        if name not in names_of_ranks and not OF_RANKS.fullmatch(name)
    }
