"""Two processes that add up by Horovod, for real, and what they show."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.checks.horovod import built, first_loadable
from hvdtrain.doctor.checks.mpi import is_open_mpi, mpirun_words
from hvdtrain.doctor.checks.software import SETUP
from hvdtrain.doctor.findings import Finding, Setting, check, fail, ok, probe_words
from hvdtrain.doctor.subprocesses import Done
from hvdtrain.launch.launchers.mpirun import mpirun_here


@check("jobs", "alone")
def check_allreduce(setting: Setting) -> Iterator[Finding]:
    """two processes add up by Horovod, over Gloo and over MPI"""
    name = first_loadable(setting)
    if not name:
        return  # said by the check `horovod`
    has = built(setting)
    words = probe_words("collective", name, limit_s=30)
    horovodrun = shutil.which("horovodrun") or shutil.which(str(Path(sys.executable).with_name("horovodrun")))
    if has["gloo"] and horovodrun:
        # Without its cache, which keeps what it found of hosts for an hour.
        started = [horovodrun, "--gloo", "--disable-cache", "-np", "2", *words]
        yield judge("horovodrun --gloo", setting.run(started, 45))
    if has["mpi"] and shutil.which("mpirun"):
        here = mpirun_here(2)
        polite = here[here.index("-np") :] if is_open_mpi(setting, "mpirun") else ["-np", "2"]
        yield judge("mpirun", setting.run([*mpirun_words(setting, *polite), *words], 45, HOROVOD_LOG_LEVEL="error"))


def judge(launcher: str, done: Done, promised: int = 2) -> Finding:
    """What a job of `promised` probes showed."""
    told = subprocesses.said(done.out)
    sizes = {one["size"] for one in told if "local_rank" in one}
    if sizes and sizes != {promised}:
        return alone(launcher, promised, max(sizes), gloo="horovodrun" in launcher)
    results = [one for one in told if "seconds" in one]
    if done.status != 0 or len(results) != promised:
        return fail(f"{launcher}: an allreduce of {promised} processes failed ({done.reason()})", _job_remedy(done))
    return measured(launcher, results, promised)


def alone(launcher: str, promised: int, size: int, gloo: bool) -> Finding:
    """Horovod does not see the launcher's processes. gloo: they were to meet over Gloo, else by MPI."""
    each = "every process is rank 0 and would train alone" if size == 1 else f"Horovod sees {size}"
    remedy = (
        f"unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS; see horovodrun --check-build: {SETUP} builds Horovod "
        f"with {'Gloo' if gloo else 'MPI; take the mpirun of the MPI that it was built with'}"
    )
    if launcher.endswith("srun") and not gloo:
        remedy = (
            "python -m hvdtrain launch srun, which meets over Gloo; or srun --mpi=pmix, where the site's MPI and Slurm "
            "have it"
        )
    return fail(f"{launcher} started {promised} processes, but {each}", remedy)


def over_gloo() -> bool:
    """Whether the launcher told Gloo where this job's ranks meet."""
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ


def controlled(launcher: str) -> str:
    """A launcher's name with what it meets by: horovodrun may use MPI too, but then mpirun's variables came first."""
    return "horovodrun --gloo" if launcher == "horovodrun" else launcher


def measured(launcher: str, results: list[dict[str, Any]], size: int) -> Finding:
    """Latency and bandwidth, from the rank that took longest."""
    if not all(one["right"] for one in results):
        return fail(
            f"{launcher}: an allreduce of {size} processes gave a wrong sum", f"{SETUP}; look at memory and network"
        )
    small = max(one["seconds"]["8"] for one in results)
    large_bytes = 16 << 20
    large = max(one["seconds"][str(large_bytes)] for one in results)
    speed = f"8 bytes in {small * 1e3:.2f} ms, 16 MiB at {large_bytes / large / 1e9:.2f} GB/s"
    return ok(f"{launcher}: {size} processes add up rightly; {speed}")


def _job_remedy(done: Done) -> str:
    text = done.err + done.out
    if re.search(r"as\s+root", text):
        return "mpirun --allow-run-as-root"
    if "not enough slots" in text:
        return "mpirun --oversubscribe"
    if done.status is None or "SIGALRM" in text:
        return "look at the checks interfaces and host-name; horovodrun --network-interfaces lo"
    return "start training of two processes by hand with HOROVOD_LOG_LEVEL=debug, and read what it says"
