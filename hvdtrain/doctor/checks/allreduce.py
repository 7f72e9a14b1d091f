"""An allreduce by Horovod in two real processes, and what its result means."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.horovod import built, first_loadable
from hvdtrain.doctor.checks.mpi import is_open_mpi, mpirun_command
from hvdtrain.doctor.findings import Finding, fail, ok
from hvdtrain.doctor.probe import LARGE_BYTES, SMALL_BYTES
from hvdtrain.doctor.remedies import wrong_size
from hvdtrain.doctor.subprocesses import Completed, probe_command
from hvdtrain.jobs.launchers.mpirun import mpirun_here
from hvdtrain.system import stacks


@check("jobs", "alone")
def check_allreduce(context: CheckContext) -> Iterator[Finding]:
    """an allreduce by Horovod in two processes, over Gloo and over MPI"""
    name = first_loadable(context)
    if not name:
        return  # the check `horovod` reports it
    has = built(context)
    program = probe_command("collective", name, limit_s=30)
    horovodrun = shutil.which("horovodrun") or shutil.which(str(Path(sys.executable).with_name("horovodrun")))
    if has["gloo"] and horovodrun:
        # Without its cache, which holds what it found out about hosts for an hour.
        command = [horovodrun, "--gloo", "--disable-cache", "-np", "2", *program]
        yield judge("horovodrun --gloo", context.run(command, 45))
    if has["mpi"] and shutil.which("mpirun"):
        here = mpirun_here(2)
        options = here[here.index("-np") :] if is_open_mpi(context, "mpirun") else ["-np", "2"]
        command = [*mpirun_command(context, *options), *program]
        yield judge("mpirun", context.run(command, 45, HOROVOD_LOG_LEVEL="error"))


def judge(launcher: str, completed: Completed, expected: int = 2) -> Finding:
    """The finding on a job of `expected` probes."""
    messages = subprocesses.read_messages(completed.out)
    sizes = {one["size"] for one in messages if "local_rank" in one}
    if sizes and sizes != {expected}:
        return wrong_size(launcher, expected, max(sizes), gloo="horovodrun" in launcher)
    results = [one for one in messages if "seconds" in one]
    if completed.status != 0 or len(results) != expected:
        text = f"{launcher}: an allreduce over {expected} processes failed ({completed.reason()})"
        return fail(text, _job_remedy(completed))
    return measured(launcher, results, expected)


def uses_gloo() -> bool:
    """Whether the launcher passed the address of a Gloo rendezvous to this rank."""
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ


def with_controller(launcher: str) -> str:
    """A launcher's name with Horovod's controller. horovodrun --mpi is detected as mpirun, by its variables."""
    return "horovodrun --gloo" if launcher == "horovodrun" else launcher


def measured(launcher: str, results: list[dict[str, Any]], size: int) -> Finding:
    """Latency and bandwidth, on the slowest rank."""
    if not all(one["correct"] for one in results):
        text = f"{launcher}: an allreduce over {size} processes gave a wrong sum"
        return fail(text, f"{stacks.repair_command()}; test the hosts' memory and network")
    small = max(one["seconds"][str(SMALL_BYTES)] for one in results)
    large = max(one["seconds"][str(LARGE_BYTES)] for one in results)
    speed = f"8 bytes in {small * 1e3:.2f} ms, 16 MiB at {LARGE_BYTES / large / 1e9:.2f} GB/s"
    return ok(f"{launcher}: an allreduce over {size} processes is correct; {speed}")


def _job_remedy(completed: Completed) -> str:
    text = completed.err + completed.out
    if re.search(r"as\s+root", text):
        return "mpirun --allow-run-as-root"
    if "not enough slots" in text:
        return "mpirun --oversubscribe"
    if completed.status is None or "SIGALRM" in text:
        return "see the checks interfaces and host-name; horovodrun --network-interfaces lo"
    return "start a training job of two processes with HOROVOD_LOG_LEVEL=debug, and read its output"
