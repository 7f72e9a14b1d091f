"""Jobs of a few processes on this host: whether launchers start them here, and an allreduce by Horovod in two."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import Finding, check, fail, ok, warn
from hvdtrain.doctor.checks.horovod import is_open_mpi
from hvdtrain.doctor.checks.software import built, first_loadable
from hvdtrain.doctor.connected_job import wrong_size
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.probe import SMALL_BYTES
from hvdtrain.doctor.subprocesses import Completed, probe_command
from hvdtrain.jobs.launchers.mpirun import mpirun_here
from hvdtrain.system import stacks


@check("jobs", "alone")
def check_slots(context: CheckContext) -> Iterator[Finding]:
    """this host has cores for the planned ranks (--ranks)"""
    cores = len(os.sched_getaffinity(0))
    if context.ranks > cores:
        text = f"{context.ranks} ranks on {cores} core(s) oversubscribe this host and slow each other down"
        yield warn(text, f"start at most {cores} ranks here, add hosts, or start without taskset")
    else:
        yield ok(f"{context.ranks} ranks on {cores} cores")


@check("jobs", "alone", measures=True)
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
        yield _judge("horovodrun --gloo", context.run(command, 45))
    if has["mpi"] and shutil.which("mpirun"):
        command = mpirun_here(2) if is_open_mpi(context, "mpirun") else ["mpirun", "-np", "2"]
        yield _judge("mpirun", context.run([*command, *program], 45, HOROVOD_LOG_LEVEL="error"))


def _judge(launcher: str, completed: Completed) -> Finding:
    messages = subprocesses.read_messages(completed.out)
    if size := other_size(messages, 2):
        return wrong_size(launcher, 2, size, gloo="horovodrun" in launcher)
    results = [message for message in messages if "seconds" in message]
    if completed.status != 0 or len(results) != 2:
        text = f"{launcher}: an allreduce over 2 processes failed ({completed.reason()})"
        return fail(text, _job_remedy(completed))
    return measured(launcher, results)


def _job_remedy(completed: Completed) -> str:
    if "not enough slots" in completed.text:
        return "mpirun --oversubscribe"
    if completed.status is None or "SIGALRM" in completed.text:
        return "see the checks interfaces and host-name; horovodrun --network-interfaces lo"
    return "start a training job of two processes with HOROVOD_LOG_LEVEL=debug, and read its output"


def other_size(messages: list[dict[str, Any]], expected: int) -> int:
    """The size of the job that Horovod sees, from the messages of its probes; 0 if it is the expected one."""
    sizes = {message["size"] for message in messages if "local_rank" in message}
    return 0 if sizes <= {expected} else max(sizes)


def measured(launcher: str, results: list[dict[str, Any]]) -> Finding:
    """Latency and bandwidth on the slowest rank, from the results of all ranks."""
    size = len(results)
    correct = f"an allreduce over {size} processes is correct"
    if not all(result["correct"] for result in results):
        text = f"{launcher}: an allreduce over {size} processes gave a wrong sum"
        return fail(text, f"{stacks.repair_command()}; test the hosts' memory and network")
    seconds = {int(count): max(result["seconds"][count] for result in results) for count in results[0]["seconds"]}
    large = max(seconds)
    speed = f"{large >> 10:,} KiB at {large / seconds[large] / 1e9:.3g} GB/s"
    return ok(f"{launcher}: {correct}; 8 bytes in {seconds[SMALL_BYTES] * 1e3:.2f} ms, {speed}")
