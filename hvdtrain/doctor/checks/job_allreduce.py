"""An allreduce by Horovod over all ranks of the job."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks import horovod
from hvdtrain.doctor.checks.allreduce import measured, uses_gloo, with_controller
from hvdtrain.doctor.checks.software import FRAMEWORKS, has_module
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.doctor.remedies import wrong_size
from hvdtrain.doctor.subprocesses import probe_command
from hvdtrain.system import rank_info, stacks

Result = tuple[list[dict[str, Any]], str]
"""A rank's messages from the probe, and why it failed; empty if it did not."""


@check("job", "job")
def check_horovod_size(context: CheckContext) -> Iterator[Finding]:
    """Horovod sees as many ranks as the launcher started, and its allreduce over them is correct"""
    assert context.job
    launcher = context.rank_info.launcher
    if launcher in ("torchrun", rank_info.TF_CONFIG):
        yield ok(f"{launcher} is for strategies without Horovod, which was not tried")
        return
    frameworks = [name for name in FRAMEWORKS if has_module("horovod") and has_module(f"horovod.{name}")]
    no_gloo = os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo" and not uses_gloo()
    gathered = context.job.gather((frameworks, no_gloo))
    if any(no_gloo for _, no_gloo in gathered):
        return  # the check `variables` reports it; Horovod would crash, and mpirun end the job with it
    everywhere = [name for name in FRAMEWORKS if all(name in of_rank for of_rank, _ in gathered)]
    name = next((name for name in everywhere if _loads_everywhere(context, name)), "")
    if not name:
        yield warn("Horovod was not tried: it loads for no framework on all ranks", stacks.repair_command())
        return
    yield _judge(context, context.job.gather(_run_collective(context, name)))


def _loads_everywhere(context: CheckContext, name: str) -> bool:
    """Whether Horovod loads for a framework on every host, where one rank tries it; all ranks must call this."""
    assert context.job
    loads = context.rank_info.local_rank > 0 or horovod.loads(context, name)
    return all(context.job.gather(loads))


def _run_collective(context: CheckContext, name: str) -> Result:
    """Run this rank's part of the allreduce, in the MPI helper if there is one."""
    assert context.job
    helper = context.job.mpi_helper
    if helper:
        helper.start_collective(name)
        ended = helper.wait_for("end", time.monotonic() + context.limit(60))
        return helper.messages(), "" if ended else helper.reason()
    limit_s = context.limit(45)
    completed = context.run(probe_command("collective", name, limit_s=limit_s), limit_s + 1)
    return subprocesses.read_messages(completed.out), "" if completed.status == 0 else completed.reason()


def _judge(context: CheckContext, results: list[Result]) -> Finding:
    """The finding, from the results of all ranks."""
    assert context.job
    launcher, size = context.rank_info.launcher, context.rank_info.size
    messages = [one for of_rank, _ in results for one in of_rank]
    sizes = {one["size"] for one in messages if "local_rank" in one}
    measurements = [one for one in messages if "seconds" in one]
    if sizes and sizes != {size}:
        return wrong_size(with_controller(launcher), size, max(sizes), uses_gloo())
    if len(measurements) == size:
        return measured(f"Horovod with {launcher}", measurements, size)
    failed = ((rank, reason) for rank, (_, reason) in enumerate(results) if reason)
    rank, reason = next(failed, (0, "no result"))
    text = f"an allreduce by Horovod over {size} ranks failed; rank {rank} ({context.job.hosts[rank]}): {reason}"
    return fail(text, "see the checks interfaces and host-name; HOROVOD_LOG_LEVEL=debug logs more")
