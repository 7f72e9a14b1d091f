"""Running the jobs of a strategy benchmark.

A job's result is its run folder, so a benchmark that was stopped continues with the jobs that are not finished.
"""

from __future__ import annotations

import shutil

from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.measure.bench.strategies import BenchJob, StrategyBenchOptions, command, environment

JOB_TIMEOUT_S = 600
GRACE_S = 10


def run_jobs(jobs: list[BenchJob], options: StrategyBenchOptions) -> list[str]:
    """Run jobs that are not finished; returns why those failed that did."""
    for job in jobs:
        shutil.rmtree(options.output / job.name, ignore_errors=True)  # left by a benchmark that was stopped
    reasons = JobSeries(environment(), JOB_TIMEOUT_S, GRACE_S).run([_in_series(job, options) for job in jobs])
    return [f"{job.name}: {reason}" for job, reason in zip(jobs, reasons, strict=True) if reason]


def _in_series(job: BenchJob, options: StrategyBenchOptions) -> SeriesJob:
    title = f"{job.row.name}, {job.replicas} replica(s), repeat {job.repeat + 1}/{options.repeats}"
    return SeriesJob(title, command(job, options), options.output / f"{job.name}.log")
