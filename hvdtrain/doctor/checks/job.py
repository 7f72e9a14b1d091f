"""The job as a whole: all ranks connect, are configured identically, and see the same folder of runs.

All ranks run these checks together: each gathers the values of all ranks, in the same order.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.storage import existing_folder
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.system import credentials, stacks
from hvdtrain.system.text import format_ranks

CLOCK_ROUNDS = 10
MAX_CLOCK_OFFSET_S = 1.0
"""Beyond this, the order of events cannot be inferred from the ranks' logs and file times."""
OPTIONS = (
    "OMP_NUM_THREADS",
    "HVDTRAIN_DATA",
    "TF_ENABLE_ONEDNN_OPTS",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "LD_LIBRARY_PATH",
)
OF_ONE_RANK = ("RANK", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "HOSTNAME")
"""HOROVOD_* variables that differ between ranks by design."""


@check("job", "job")
def check_meeting(context: CheckContext) -> Iterator[Finding]:
    """the ranks can connect to each other"""
    assert context.job
    yield from context.job.findings


@check("job", "job")
def check_identical(context: CheckContext) -> Iterator[Finding]:
    """versions, options and hvdtrain's code are identical on all ranks"""
    assert context.job
    installed = stacks.versions_here()
    code = {stacks.CODE: installed.pop(stacks.CODE)}
    gathered = context.job.gather({"versions": installed, "options": _options(), "program": code})
    setup = "make setup on all hosts, from the same checkout; check PYTHONPATH and PATH of the ranks"
    environment = "set it to the same value on all ranks: horovodrun passes the environment on, mpirun needs -x NAME"
    checkout = "use the same checkout on all hosts: git rev-parse HEAD"
    for what, level, remedy in (
        ("versions", fail, setup),
        ("options", warn, environment),
        ("program", fail, checkout),
    ):
        differing = differences([one[what] for one in gathered])
        for name, values in differing.items():
            yield level(f"{name} differs between ranks: {values}", remedy)
        if not differing:
            yield ok(f"identical {what} on all ranks")


def _options() -> dict[str, str]:
    """Variables that must be equal on all ranks."""
    excluded = {f"HOROVOD_{name}" for name in OF_ONE_RANK}
    return {
        # mpirun prepends its own folders, on some ranks twice.
        name: ":".join(dict.fromkeys(filter(None, value.split(":")))) if name == "LD_LIBRARY_PATH" else value
        for name, value in os.environ.items()
        if (name in OPTIONS or (name.startswith("HOROVOD_") and name not in excluded))
        and not credentials.holds(name, value)
    }


def differences(gathered: list[dict[str, str]]) -> dict[str, str]:
    """For each name whose value differs between ranks, the values and the ranks that have them."""
    found = {}
    for name in sorted({name for one in gathered for name in one}):
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, one in enumerate(gathered):
            ranks[one.get(name, "none")].append(rank)
        if len(ranks) > 1:
            found[name] = ", ".join(f"{value[:60]} (rank {format_ranks(of)})" for value, of in ranks.items())
    return found


class ClockSamples(NamedTuple):
    """A rank's time.time() before and after each of some gathers."""

    before: list[float]
    after: list[float]


@check("job", "job")
def check_clocks(context: CheckContext) -> Iterator[Finding]:
    """the clocks of all ranks agree with rank 0's"""
    assert context.job
    own = ClockSamples([], [])
    for _ in range(CLOCK_ROUNDS):
        own.before.append(time.time())
        context.job.gather(None)
        own.after.append(time.time())
    samples = [ClockSamples(*one) for one in context.job.gather(tuple(own))]
    offsets = [clock_offset(one, samples[0]) for one in samples]
    wrong = {rank: one for rank, one in enumerate(offsets) if abs(one[0]) - one[1] > MAX_CLOCK_OFFSET_S}
    for rank, (offset, error) in wrong.items():
        where = f"rank {rank} ({context.job.hosts[rank]})"
        text = f"the clock of {where} differs by {offset:+.1f} s (± {error:.3f} s) from rank 0's"
        yield warn(text, "set the clocks by NTP on all hosts: timedatectl set-ntp true, or systemctl start chrony")
    if not wrong:
        largest = max(abs(offset) for offset, _ in offsets) + max(error for _, error in offsets)
        yield ok(f"clocks agree within {largest * 1e3:.1f} ms")


def clock_offset(one: ClockSamples, zero: ClockSamples) -> tuple[float, float]:
    """Seconds by which a rank's clock is ahead of rank 0's, and the uncertainty.

    No rank leaves a gather before all have entered it, so in true time each rank's `after` is later than every rank's
    `before`: each round gives an upper and a lower bound, and the tightest ones count.
    """
    lower = max(before - after for before, after in zip(one.before, zero.after, strict=True))
    upper = min(after - before for after, before in zip(one.after, zero.before, strict=True))
    return (lower + upper) / 2, max(upper - lower, 0.0) / 2


@check("job", "job")
def check_bound(context: CheckContext) -> Iterator[Finding]:
    """the ranks of a host are not all bound to the same cores"""
    assert context.job
    gathered = context.job.gather((context.host, sorted(os.sched_getaffinity(0)), os.cpu_count() or 1))
    bound: dict[str, list[list[int]]] = defaultdict(list)
    for host, cores, _ in gathered:
        bound[host].append(cores)
    for host, count in {host: count for host, _, count in gathered}.items():
        yield _binding(host, bound[host], count)


def _binding(host: str, bound: list[list[int]], count: int) -> Finding:
    """bound: the cores that each rank of the host may use. count: all cores of the host."""
    ranks, cores = len(bound), {core for one in bound for core in one}
    if ranks > 1 and len(cores) < min(ranks, count):
        which = f"core {min(cores)}" if len(cores) == 1 else f"{len(cores)} cores"
        text = f"all {ranks} ranks on {host} are bound to {which} of {count}"
        return fail(text, "mpirun --bind-to none, srun --cpu-bind=none or more --cpus-per-task; start without taskset")
    if ranks > count:
        text = f"{ranks} ranks on the {count} core(s) of {host} oversubscribe it"
        return warn(text, f"start at most {count} ranks there, or add hosts")
    return ok(f"{ranks} ranks on {host} share {len(cores)} of {count} cores")


@check("job", "job")
def check_shared_folder(context: CheckContext) -> Iterator[Finding]:
    """all ranks see the folder of runs"""
    assert context.job
    folder, leads = existing_folder(context.runs), context.rank_info.rank == 0
    own = folder / f".hvdtrain-doctor-{secrets.token_hex(8)}"
    if leads:
        with suppress(OSError):
            own.write_text(own.name)
    try:
        marker, host = context.job.gather((str(own), context.host))[0]
        # A network file system shows a new file a little later.
        seen = context.job.gather(_exists(context, Path(marker), wait_s=0 if host == context.host else 3))
    finally:
        if leads:
            with suppress(OSError):
                own.unlink()
    missing = [rank for rank, one in enumerate(seen) if not one]
    if not seen[0]:
        return  # the check `folder` reports it
    if missing:
        where = ", ".join(f"{rank} ({context.job.hosts[rank]})" for rank in missing)
        text = f"rank {where} does not see {folder}, where rank 0 writes runs and checkpoints"
        yield fail(text, "with --runs, give a folder that all hosts share, for example over NFS")
    else:
        yield ok(f"all ranks see {folder}")


def _exists(context: CheckContext, path: Path, wait_s: int) -> bool:
    return "exists" in context.probe("exists", str(path), str(wait_s), limit_s=10)[0]
