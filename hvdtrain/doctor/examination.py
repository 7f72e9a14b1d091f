"""Running the checks, in one process or in all ranks of a job.

A new check goes into a file of `checks/`; a new file, into `MODULES`.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hvdtrain.doctor import quick
from hvdtrain.doctor.check import STATUSES, Check, Row, rows_of, run_check
from hvdtrain.doctor.checks import gpu, horovod, job, machine, software, variables
from hvdtrain.doctor.connected_job import RENDEZVOUS_S, ConnectedJob
from hvdtrain.doctor.context import BUDGET_S, CheckContext
from hvdtrain.doctor.quick import QUICK
from hvdtrain.doctor.subprocesses import STARTED
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.system import rank_info
from hvdtrain.system.processes import end_descendants

MODULES = (quick, software, horovod, gpu, machine, variables, job)
"""In the order in which checks run and are listed; those of the whole job come last."""
CHECKS = tuple(check for module in MODULES for check in vars(module).values() if isinstance(check, Check))


def examine(only: list[str], ranks: int, hosts: tuple[str, ...], runs: Path) -> dict[str, Any]:
    """Run the checks; in a job, all ranks must call it.

    only: names of checks to run; all if empty. ranks: number of ranks planned on this host; in a job, the actual number
    is used. hosts: other hosts to check over ssh. runs: folder of runs.
    Returns the report as JSON values: on rank 0 that of the whole job, on other ranks their own.
    """
    began = time.monotonic()
    rank = detect_rank()
    context = CheckContext(rank, ranks, began + BUDGET_S, hosts, runs)
    checks = [check for check in CHECKS if not only or check.name in only]
    reports = _examine_job(context, checks) if context.in_job else [_report(context, _local_rows(context, checks))]
    findings = merge(reports)
    return {
        "status": max((finding["status"] for finding in findings), key=STATUSES.index, default="ok"),
        "launcher": rank.launcher,
        "ranks": rank.size,
        "hosts": list(dict.fromkeys(report["host"] for report in reports)),
        "seconds": round(time.monotonic() - began, 1),
        "findings": findings,
    }


def detect_rank() -> rank_info.RankInfo:
    """This process's rank; that of a single process if the launcher's variables are invalid."""
    try:
        return rank_info.detect()
    except UserError:  # the check `variables` reports it
        return rank_info.RankInfo("none", 0, 1, 0)


def _local_rows(context: CheckContext, checks: list[Check]) -> list[Row]:
    """Findings of the checks that this rank makes without the others.

    First come those that take no time, as what they read must not depend on the others; then those with subprocesses,
    side by side; last those that measure, one by one.
    """
    wheres = {"rank"}
    if context.rank_info.local_rank == 0:
        wheres.add("host")
    if not context.in_job:
        wheres.add("alone")
    local = [check for check in checks if check.where in wheres]
    rows = {check: run_check(check, context) for check in local if check in QUICK}
    beside = [check for check in local if check not in QUICK and not check.measures]
    with ThreadPoolExecutor(max(len(beside), 1)) as threads:
        try:
            rows.update(zip(beside, threads.map(lambda check: run_check(check, context), beside), strict=True))
        except BaseException:  # a signal: the threads would wait for what they started, and start more
            context.is_ended.set()
            end_descendants(STARTED)
            raise
    rows.update({check: run_check(check, context) for check in local if check.measures})
    return [row for check in local for row in rows[check]]


def _report(context: CheckContext, rows: list[Row]) -> dict[str, Any]:
    return {"rank": context.rank_info.rank, "host": context.host, "findings": rows}


def _examine_job(context: CheckContext, checks: list[Check]) -> list[dict[str, Any]]:
    """Reports of all ranks; of this one only, if the ranks cannot connect."""
    began = time.monotonic()
    context.job = connection = ConnectedJob(context, timeout_s=BUDGET_S + 60)
    try:
        context.ranks, leads = connection.local_ranks, context.rank_info.rank == 0
        rows = _local_rows(context, checks)
        of_job = _job_rows(context, checks)
        rows += of_job if leads else []  # all ranks have the same findings on the job
        if connection.ring:
            meeting = rows_of(job.check_meeting, connection.findings) if leads else []
            try:
                return context.gather(_report(context, [*meeting, *rows]))
            except HvdtrainError as error:
                connection.disconnect(error)
        busy = context.busy() if time.monotonic() - began >= RENDEZVOUS_S else ""
        return [_report(context, [*rows_of(job.check_meeting, connection.findings, busy), *rows])]
    finally:
        connection.close()


def _job_rows(context: CheckContext, checks: list[Check]) -> list[Row]:
    """Findings of the checks that all connected ranks make together; all ranks must call it."""
    rows: list[Row] = []
    for check in checks:
        if check.where == "job" and check != job.check_meeting and context.job.ring:
            own = copy.copy(context)
            try:
                findings = list(check(own))
                rows += rows_of(check, findings, "; ".join(filter(None, context.gather(own.late))))
            except Exception as error:  # the ranks are no longer in step: nothing more can be gathered
                context.job.disconnect(error)
    return rows


def merge(reports: list[dict[str, Any]]) -> list[Row]:
    """Findings of all ranks, grouped by check; equal ones once, with the ranks and hosts that have them.

    `everywhere` is set for a finding that all ranks have which ran the check.
    """
    ran = Counter(name for report in reports for name in {row["check"] for row in report["findings"]})
    merged: dict[tuple[str, ...], Row] = {}
    for report in reports:
        for row in report["findings"]:
            key = (row["check"], row["status"], row["text"], row["remedy"])
            entry = merged.setdefault(key, {**row, "ranks": [], "hosts": []})
            if report["rank"] not in entry["ranks"]:
                entry["ranks"].append(report["rank"])
            if report["host"] not in entry["hosts"]:
                entry["hosts"].append(report["host"])
    order = list(dict.fromkeys(row["check"] for report in reports for row in report["findings"]))
    rows = sorted(merged.values(), key=lambda row: order.index(row["check"]))
    for row in rows:
        row["everywhere"] = len(row["ranks"]) == ran[row["check"]]
    return rows
