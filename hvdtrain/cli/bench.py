"""python -m hvdtrain bench: compare all strategies."""

from __future__ import annotations

import sys

from hvdtrain.cli.report import show_report
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.errors import TrainingError
from hvdtrain.measure.bench.strategies import (
    StrategyBenchOptions,
    all_rows,
    choose,
    is_finished,
    plan,
    run_jobs,
    with_shards,
)
from hvdtrain.runs.search import finished_runs
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable

PROG = "python -m hvdtrain bench"


def parser() -> OptionParser:
    return parser_of(StrategyBenchOptions, PROG)


@exit_status()
def main(argv: list[str]) -> None:
    """Run a benchmark; ends the process with 1 if a job failed, 2 for invalid options."""
    run(read_arguments(StrategyBenchOptions, PROG, argv))


def run(options: StrategyBenchOptions) -> None:
    """Run all jobs that are not finished, and write the report. Raises TrainingError if a job failed."""
    rows = with_shards(choose(all_rows(), options.rows), options.shards)
    require_writable(options.output, "--output")
    jobs = plan(rows, options)
    missing = [job for job in jobs if not is_finished(job, options)]
    if jobs and not missing:
        print(f"nothing to do: all {len(jobs)} jobs have finished", file=sys.stderr, flush=True)
    failed = run_jobs(missing, options)
    for row in rows:
        if row.problem:
            print(f"{row.name} was not run: {row.problem}")
    show_report(*finished_runs([options.output]), options.output / "report")
    if failed:
        raise TrainingError(f"{len(failed)} job(s) failed: " + "; ".join(failed))
