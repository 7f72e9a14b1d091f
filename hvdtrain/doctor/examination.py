"""Running the checks: in one process or in all ranks of a job, or only those that are quick enough for every run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.doctor import reports
from hvdtrain.doctor.check import Check, run_check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.job import check_meeting
from hvdtrain.doctor.connected_job import ConnectedJob, cannot_exchange
from hvdtrain.doctor.findings import STATUSES, Finding
from hvdtrain.doctor.registry import CHECKS, QUICK
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.jobs.hosts import DEFAULT_ACCESS, SshAccess
from hvdtrain.system import rank_info

HELPER_LIMIT_S = 120
BUDGET_S = 150
"""Time limit for all checks, without the exchange of findings. The slowest case is a job whose probes all hang."""


@dataclass(frozen=True)
class Options:
    """What to examine."""

    only: tuple[str, ...] = ()
    """Names of checks to run; all if empty."""
    hosts: tuple[str, ...] = ()
    """Other hosts to check over ssh."""
    ranks: int = 2
    """Number of ranks planned on this host; in a job, the actual number is used."""
    runs: Path = Path("runs")
    """Folder of runs."""
    ssh: SshAccess = DEFAULT_ACCESS
    """How those hosts are reached."""

    def selects(self, check: Check) -> bool:
        return not self.only or check.name in self.only


def examine(options: Options) -> dict[str, Any]:
    """Run the checks; in a job, all ranks must call it.

    Returns the report as JSON values: on rank 0 that of the whole job, on other ranks their own.
    """
    began = time.monotonic()
    try:
        rank = rank_info.detect()
    except UserError:  # the check `variables` reports it
        rank = rank_info.RankInfo("none", 0, 1, 0)
    context = CheckContext(rank, options.ranks, began + BUDGET_S, options.hosts, options.runs, ssh=options.ssh)
    of_ranks = _examine_job(context, options) if context.in_job else [_report(context, _own_checks(context, options))]
    findings = reports.merge(of_ranks)
    return {
        "status": max((one["status"] for one in findings), key=STATUSES.index, default="ok"),
        "launcher": rank.launcher,
        "ranks": rank.size,
        "hosts": list(dict.fromkeys(report["host"] for report in of_ranks)),
        "seconds": round(time.monotonic() - began, 1),
        "findings": findings,
    }


def quick() -> list[dict[str, Any]]:
    """Findings of the `QUICK` checks on this host, for a run's record. Starts no process."""
    context = CheckContext(rank_info.detect(), rank_info.local_size(), time.monotonic() + BUDGET_S)
    chosen = [one for one in CHECKS if one.name in QUICK]
    return [row for one in chosen for row in reports.rows(one, run_check(one, context))]


def _own_checks(context: CheckContext, options: Options) -> list[dict[str, Any]]:
    """Findings of the checks that this rank makes on its own."""
    wheres = {"rank"}
    if context.rank_info.local_rank == 0:
        wheres.add("host")
    if not context.in_job:
        wheres.add("alone")
    chosen = [one for one in CHECKS if one.where in wheres and options.selects(one)]
    return [row for one in chosen for row in reports.rows(one, run_check(one, context))]


def _report(context: CheckContext, findings: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rank": context.rank_info.rank, "host": context.host, "findings": findings}


def _examine_job(context: CheckContext, options: Options) -> list[dict[str, Any]]:
    """Reports of all ranks; of this one only, if the ranks cannot connect."""
    context.job = job = ConnectedJob(
        context.rank_info, context.host, context.limit(HELPER_LIMIT_S), timeout_s=BUDGET_S + 60
    )
    try:
        context.ranks = job.local_ranks
        leads = context.rank_info.rank == 0
        report = _report(context, [])
        if leads or not job.connected:  # once connected, all ranks would report the same
            report["findings"] += reports.rows(check_meeting, check_meeting(context))
        report["findings"] += _own_checks(context, options)
        if job.connected:
            of_job = _job_checks(context, options)
            if leads:  # all ranks have the same findings on the job
                report["findings"] += of_job
        if job.connected:
            try:
                return job.gather(report)
            except HvdtrainError as error:
                report["findings"] += reports.rows(check_meeting, [cannot_exchange(error)])
        return [report]
    finally:
        job.close()


def _job_checks(context: CheckContext, options: Options) -> list[dict[str, Any]]:
    """Findings of the checks that all ranks make together; all ranks must call it."""
    assert context.job
    found: list[dict[str, Any]] = []
    for one in CHECKS:
        if one.where != "job" or one == check_meeting or not options.selects(one):
            continue
        try:
            findings: list[Finding] = list(one(context))
        except Exception as error:  # the ranks are no longer in step: nothing more can be gathered
            context.job.disconnect()
            findings = [cannot_exchange(error)]
        found += reports.rows(one, findings)
        if not context.job.connected:
            break
    return found
