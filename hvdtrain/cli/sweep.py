"""python -m hvdtrain sweep: train with all combinations of some options, each in a job of its own, and compare them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping

from hvdtrain.cli import launch, launch_options
from hvdtrain.cli.report import show_report
from hvdtrain.cli.sweep_settings import check_trial, of_launch, parse, parse_settings, trial_number
from hvdtrain.cli.sweep_settings import parser as parser
from hvdtrain.errors import Stopped, TrainingError
from hvdtrain.jobs.own_program import without_program
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.measure.sweep.study import EarlyEnd, Proposal, SweepStudy, exclusive
from hvdtrain.measure.sweep.trials import COMPLETE, PRUNED, Trial, corners, plan
from hvdtrain.system.command import exit_status
from hvdtrain.system.text import printable

ENDED = COMPLETE, PRUNED
"""States of a trial that is not run again."""


@exit_status()
def main(argv: list[str]) -> None:
    """Run the sweep; ends the process with 1 if a trial failed, 2 for invalid options."""
    end = argv.index("--") if "--" in argv else len(argv)
    options, command = parse(argv[:end]), without_program(argv[end + 1 :])
    if options.table:
        _report(SweepStudy(options, [], {}), {})
        return
    settings = parse_settings(options, command)
    planned = [] if options.trials else plan(settings, options.seeds)
    number = trial_number(options, len(planned)) if planned else None
    chosen = planned if number is None else [planned[number]]
    trials = chosen or corners(settings)
    for trial in trials:
        check_trial(trial, command, options.output)
    if words := of_launch(trials[0].launched(command)):
        launch.describe(launch_options.parse(words))
    if options.dry_run:
        for trial in chosen:
            print(shlex.join(["hvdtrain", *trial.command(command, options.output)]))
        return
    study = SweepStudy(options, command, settings)
    if chosen:
        study.add(planned, chosen)
    left, count = study.left(), options.trials or len(chosen)
    if left < count:
        ended = f"{count - left} of {count} trials have ended"
        print(ended if left else f"nothing to do: {ended}", file=sys.stderr, flush=True)
    _run(study, left * (options.seeds if options.trials else 1))


def _run(study: SweepStudy, count: int) -> None:
    """Run the trials that are left, of which there are at most `count`, and show the report.

    Raises TrainingError if one failed, Stopped if it was only asked to stop.
    """
    failures: dict[str, str] = {}
    series, only_stopped = JobSeries(os.environ), True
    begun: list[Trial] = []
    for failed in series.run(_jobs(study, begun), count):
        trial = begun[-1]
        if reason := failed or ("" if trial.status(study.folder) in ENDED else "it ended without a result"):
            failures[trial.name] = reason
            only_stopped = only_stopped and series.status == Stopped.exit_status
    _report(study, failures)
    if failures and only_stopped:
        raise Stopped("trials were asked to stop", "the same command continues them")
    if failures:
        raise TrainingError(f"{len(failures)} trial(s) failed: " + "; ".join(map(": ".join, failures.items())))


def _jobs(study: SweepStudy, begun: list[Trial]) -> Iterator[SeriesJob]:
    """The jobs of the sweep, of which each is taken when the one before it has ended. begun: gets their trials."""
    for proposal in study.proposals():
        for trial in proposal.trials:
            check_trial(trial, study.command, study.folder)
            if trial.status(study.folder) not in ENDED:
                begun.append(trial)
                yield _job(trial, proposal, study)
            if trial.status(study.folder) == PRUNED:
                break
        study.ended(proposal)


def _job(trial: Trial, proposal: Proposal, study: SweepStudy) -> SeriesJob:
    line = [sys.executable, "-m", "hvdtrain", *trial.command(study.command, study.folder)]
    title = printable(f"{trial.label}, seed {trial.seed}" if trial.label else f"seed {trial.seed}")
    log = study.folder / f"{trial.name}.log"
    job = SeriesJob(title, line, log, lambda: trial.status(study.folder) != COMPLETE)
    if not study.options.trials or trial is not proposal.trials[0]:
        return job  # no search, or not the seed that decides
    early = EarlyEnd(proposal.trial, study.folder / trial.name)
    return job._replace(watch=early.look, excuse=early.excuse)


def _report(study: SweepStudy, failures: Mapping[str, str]) -> None:
    """Write and show the report on all trials in the folder, also on those that other processes run; best first."""
    with exclusive(study.folder):
        finished, unfinished = study.results(failures)
        if finished:
            show_report(finished, unfinished, study.folder / "report", by_score=True)
        else:
            print("no trial has a result", *unfinished, sep="\n")
