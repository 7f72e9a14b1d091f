"""The job as a whole: all ranks connect, are configured identically, see the same folder of runs, and Horovod works."""

from __future__ import annotations

import os
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hvdtrain.doctor.check import Finding, check, fail, ok, warn
from hvdtrain.doctor.checks.horovod import measured, other_size
from hvdtrain.doctor.checks.machine import existing_folder
from hvdtrain.doctor.checks.variables import uses_gloo, with_controller
from hvdtrain.doctor.connected_job import NO_FRAMEWORK, NO_GLOO, horovod_framework, wrong_size
from hvdtrain.doctor.context import CheckContext
from hvdtrain.system import credentials, rank_info, stacks
from hvdtrain.system.text import format_ranks

if TYPE_CHECKING:
    import numpy as np

CLOCK_ROUNDS = 10
MAX_CLOCK_OFFSET_S = 1.0
"""Beyond this, the order of events cannot be inferred from the ranks' logs and file times."""
OPTIONS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS", "HVDTRAIN_DATA", "NCCL_DEBUG")
OF_ONE_RANK = ("RANK", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "HOSTNAME")
"""HOROVOD_* variables that differ between ranks by design."""


@check("job", "job")
def check_meeting(context: CheckContext) -> Iterator[Finding]:
    """the ranks can connect to each other"""
    yield from context.job.findings


@check("job", "job")
def check_identical(context: CheckContext) -> Iterator[Finding]:
    """versions, options and hvdtrain's code are identical on all ranks"""
    installed = stacks.versions_here()
    code = {stacks.CODE: installed.pop(stacks.CODE)}
    gathered = context.gather({"versions": installed, "options": _options(), "program": code})
    setup = "make setup on all hosts, from the same checkout; check PYTHONPATH and PATH of the ranks"
    environment = "set it to the same value on all ranks: horovodrun passes the environment on, mpirun needs -x NAME"
    checkout = "use the same checkout on all hosts: git rev-parse HEAD"
    for what, level, remedy in (("versions", fail, setup), ("options", warn, environment), ("program", fail, checkout)):
        differing = differences([of_rank[what] for of_rank in gathered])
        for name, values in differing.items():
            yield level(f"{name} differs between ranks: {values}", remedy)
        if not differing:
            yield ok(f"identical {what} on all ranks")


def _options() -> dict[str, str]:
    """Variables that must be equal on all ranks."""
    of_one_rank = {f"HOROVOD_{name}" for name in OF_ONE_RANK}
    horovod = [name for name in os.environ if name.startswith("HOROVOD_") and name not in of_one_rank]
    options = {name: os.environ[name] for name in (*OPTIONS, *horovod) if name in os.environ}
    if "LD_LIBRARY_PATH" in os.environ:  # mpirun prepends its own folders, on some ranks twice
        folders = filter(None, os.environ["LD_LIBRARY_PATH"].split(":"))
        options["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(folders))
    return {name: value for name, value in options.items() if not credentials.holds(name, value)}


def differences(gathered: list[dict[str, str]]) -> dict[str, str]:
    """For each name whose value differs between ranks, the values and the ranks that have them."""
    differing = {}
    for name in sorted({name for values in gathered for name in values}):
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, values in enumerate(gathered):
            ranks[values.get(name, "none")].append(rank)
        if len(ranks) > 1:
            differing[name] = ", ".join(f"{value[:60]} (rank {format_ranks(of)})" for value, of in ranks.items())
    return differing


Gathers = list[tuple[float, float]]
"""A rank's time.time() before and after each of some gathers."""


@check("job", "job")
def check_clocks(context: CheckContext) -> Iterator[Finding]:
    """the clocks of all ranks agree with rank 0's"""
    local: Gathers = []
    for _ in range(CLOCK_ROUNDS):
        before = time.time()
        context.gather(None)
        local.append((before, time.time()))
    gathered = context.gather(local)
    offsets = [clock_offset(of_rank, gathered[0]) for of_rank in gathered]
    wrong = [rank for rank, (offset, error) in enumerate(offsets) if abs(offset) - error > MAX_CLOCK_OFFSET_S]
    for rank in wrong:
        offset, error = offsets[rank]
        where = f"rank {rank} ({context.job.hosts[rank]})"
        text = f"the clock of {where} differs by {offset:+.1f} s (± {error:.3f} s) from rank 0's"
        yield warn(text, "set the clocks by NTP on all hosts: timedatectl set-ntp true, or systemctl start chrony")
    if not wrong:
        largest = max(abs(offset) for offset, _ in offsets) + max(error for _, error in offsets)
        yield ok(f"clocks agree within {largest * 1e3:.1f} ms")


def clock_offset(rank: Gathers, zero: Gathers) -> tuple[float, float]:
    """Seconds by which a rank's clock is ahead of rank 0's, and the uncertainty.

    No rank leaves a gather before all have entered it, so in true time each rank's `after` is later than every rank's
    `before`: each round gives an upper and a lower bound, and the tightest ones count.
    """
    pairs = list(zip(rank, zero, strict=True))
    lower = max(before - after for (before, _), (_, after) in pairs)
    upper = min(after - before for (_, after), (before, _) in pairs)
    return (lower + upper) / 2, max(upper - lower, 0.0) / 2


@check("job", "job")
def check_bound(context: CheckContext) -> Iterator[Finding]:
    """the ranks of a host are not all bound to the same cores"""
    gathered = context.gather((context.host, sorted(os.sched_getaffinity(0)), os.cpu_count() or 1))
    bound: dict[str, list[list[int]]] = defaultdict(list)
    for host, cores, _ in gathered:
        bound[host].append(cores)
    for host, count in {host: count for host, _, count in gathered}.items():
        yield _binding(host, bound[host], count)


def _binding(host: str, bound: list[list[int]], count: int) -> Finding:
    """bound: the cores that each rank of the host may use. count: all cores of the host."""
    ranks, cores = len(bound), {core for of_rank in bound for core in of_rank}
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
    folder, leads = existing_folder(context.runs), context.rank_info.rank == 0
    local_marker = folder / f".hvdtrain-doctor-{secrets.token_hex(8)}"
    if leads:
        with suppress(OSError):
            local_marker.write_text(local_marker.name)
    try:
        marker, host = context.gather((str(local_marker), context.host))[0]
        # A network file system shows a new file a little later.
        wait_s = 0 if host == context.host else 3
        seen = context.gather("exists" in context.probe("exists", marker, str(wait_s), limit_s=10)[0])
    finally:
        if leads:
            with suppress(OSError):
                local_marker.unlink()
    missing = [rank for rank, sees in enumerate(seen) if not sees]
    if not seen[0]:
        return  # the check `folder` reports it
    if missing:
        where = ", ".join(f"{rank} ({context.job.hosts[rank]})" for rank in missing)
        text = f"rank {where} does not see {folder}, where rank 0 writes runs and checkpoints"
        yield fail(text, "with --runs, give a folder that all hosts share, for example over NFS")
    else:
        yield ok(f"all ranks see {folder}")


@check("job", "job")
def check_horovod_size(context: CheckContext) -> Iterator[Finding]:
    """Horovod sees as many ranks as the launcher started, and its allreduce over them is correct"""
    launcher = context.rank_info.launcher
    if launcher in ("torchrun", rank_info.TF_CONFIG):
        yield ok(f"{launcher} is for strategies without Horovod, which was not tried")
        return
    names = set(filter(None, context.gather(horovod_framework(context))))
    if NO_GLOO in names:
        return  # the check `variables` reports it
    if len(names) > 1 or NO_FRAMEWORK in names:
        yield warn("Horovod was not tried: it loads for no framework on all ranks", stacks.repair_command())
        return
    yield _judge(context, context.gather(_run_collective(context, names.pop())))


def _run_collective(context: CheckContext, name: str) -> dict[str, Any]:
    """What this rank's part of the allreduce reports; `reason`: why it failed."""
    if context.job.over_mpi is not None:
        context.late = context.late or context.job.late
        return context.job.over_mpi
    values, completed = context.probe("collective", name, limit_s=45)
    return values if completed.status == 0 else {**values, "reason": completed.reason()}


def _judge(context: CheckContext, results: list[dict[str, Any]]) -> Finding:
    launcher, size = context.rank_info.launcher, context.rank_info.size
    if seen := other_size(results, size):
        return wrong_size(with_controller(launcher), size, seen, uses_gloo())
    measurements = [result for result in results if "seconds" in result]
    if len(measurements) == size:
        return measured(f"Horovod with {launcher}", measurements)
    failed = ((rank, result["reason"]) for rank, result in enumerate(results) if "reason" in result)
    rank, reason = next(failed, (0, "no result"))
    text = f"an allreduce by Horovod over {size} ranks failed; rank {rank} ({context.job.hosts[rank]}): {reason}"
    return fail(text, "see the checks interfaces and host-name; HOROVOD_LOG_LEVEL=debug logs more")


SMALL_BYTES = 8
GRADIENT_BYTES = 4 * 129_068
"""LeNet's gradients."""
COMPUTE_S = 0.025
"""A core computes a step of LeNet with 128 images in that time: 5,207 images/s in docs/benchmarks.md (PyTorch, single).
Networks differ in how much they compute for each parameter, and GPUs are faster, so the finding has the figures."""
REPEATS = 10
"""The shortest allreduce counts, which other programs disturbed least."""
REPEATED_S = 0.5
"""One that takes longer is not repeated."""
LATENCY_SHARE = 0.5
"""Of the time of an allreduce: from there on, fewer bytes would not help, only fewer exchanges."""


class LinkTimes(NamedTuple):
    """Allreduces over the ring of a job's ranks, on its slowest rank."""

    ranks: int
    small_s: float
    """Of SMALL_BYTES."""
    gradient_s: float
    """Of GRADIENT_BYTES."""
    busy: bool
    """Whether ranks may have waited for cores: a host has more ranks than cores, or other programs keep it busy."""

    @property
    def mbit_s(self) -> float:
        """What a rank sent meanwhile, at least: 2 (p - 1) / p of the bytes, as in nccl-tests' bus bandwidth."""
        return 2 * (self.ranks - 1) / self.ranks * GRADIENT_BYTES * 8 / self.gradient_s / 1e6


@check("job", "job")
def check_link(context: CheckContext) -> Iterator[Finding]:
    """the cores, not the link between the ranks, are what a step waits for"""
    import numpy as np

    small_s = min(_seconds(context, np.zeros(SMALL_BYTES // 4, np.float32)) for _ in range(REPEATS))
    values = np.zeros(GRADIENT_BYTES // 4, np.float32)
    gradient_s = _seconds(context, values)
    if max(context.gather(gradient_s)) < REPEATED_S:
        gradient_s = min(_seconds(context, values) for _ in range(REPEATS))
    busy = bool(context.busy()) or context.job.local_ranks > len(os.sched_getaffinity(0))
    gathered = context.gather([small_s, gradient_s, busy])
    yield judge(LinkTimes(context.rank_info.size, *map(max, zip(*gathered, strict=True))))


def _seconds(context: CheckContext, values: np.ndarray) -> float:
    began = time.perf_counter()
    context.job.ring.allreduce(values)
    return time.perf_counter() - began


def judge(times: LinkTimes) -> Finding:
    """The finding; for a link that is slow, with the options that send less, or less often, over it."""
    small_ms, gradient_ms, compute_ms = (1e3 * seconds for seconds in (times.small_s, times.gradient_s, COMPUTE_S))
    figures = (
        f"over {times.ranks} ranks, an allreduce takes {small_ms:.2f} ms for 8 bytes and {gradient_ms:.1f} ms for the "
        f"{GRADIENT_BYTES / 1e3:.0f} kB of LeNet's gradients ({times.mbit_s:,.0f} Mbit/s), which a core computes in "
        f"about {compute_ms:.0f} ms"
    )
    if times.gradient_s < COMPUTE_S:
        return ok(figures)
    if times.busy:
        text = f"ranks may wait for cores, so the link cannot be judged: {figures}"
        return warn(text, "start at most one rank per core, end other programs on the hosts, and run the doctor again")
    return warn(f"the link, not the cores, is what a step waits for: {figures}", _remedy(times))


def _remedy(times: LinkTimes) -> str:
    if times.small_s >= LATENCY_SHARE * times.gradient_s:
        return "exchange less often: --sync-every 8 (docs/links.md), or larger batches; fewer bytes would not help"
    return (
        "--compression int8, which only rounds, or powersgd:4 or --sync-every 8, which change the algorithm "
        "(docs/links.md)"
    )
