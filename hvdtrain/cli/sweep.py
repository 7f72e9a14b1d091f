"""python -m hvdtrain sweep: train with all combinations of some options, each in a job of its own, and compare them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.cli.sweep_programs import check_trial
from hvdtrain.cli.sweep_settings import parse, parse_settings, trial_number
from hvdtrain.cli.sweep_settings import parser as parser
from hvdtrain.errors import MissingPackage, Stopped, TrainingError, UserError
from hvdtrain.jobs.series import JobSeries, SeriesJob, without_program
from hvdtrain.measure.sweep import comparison
from hvdtrain.measure.sweep.comparison import Combination
from hvdtrain.measure.sweep.study import EarlyEnd, Proposal, SweepStudy, exclusive, is_pruned
from hvdtrain.measure.sweep.trials import Trial, corners, has_result, plan
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import write_outputs
from hvdtrain.system.text import did_you_mean, printable
from hvdtrain.views.report.bits import bit_sentences
from hvdtrain.views.table import paragraph

COMMANDS = ("train", "launch")
PLOT = "sweep.png"


@exit_status()
def main(argv: list[str]) -> None:
    """Run the sweep; ends the process with 1 if a trial failed, 2 for invalid options."""
    end = argv.index("--") if "--" in argv else len(argv)
    options, command = parse(argv[:end]), without_program(argv[end + 1 :])
    if options.table:
        study = SweepStudy(options, [], {})
        _show(_write_tables(study, {}, plot=True), study)
        return
    if command[:1] not in (["train"], ["launch"]):
        what = f"-- {command[0]}: a sweep runs train or launch{did_you_mean(command[0], COMMANDS)}" if command else ""
        remedy = "write -- train OPTIONS, or -- launch local -n 2 -- python -m hvdtrain.torch_lenet OPTIONS"
        raise UserError(what or "no command to run", remedy)
    settings = parse_settings(options, command)
    planned = [] if options.trials else plan(settings, options.seeds)
    number = trial_number(options, len(planned)) if planned else None
    chosen = planned if number is None else [planned[number]]
    for trial in chosen or corners(settings):
        check_trial(trial, command, options.output)
    if options.dry_run:
        for trial in chosen:
            print(shlex.join(["hvdtrain", *trial.command(command, options.output)]))
        return
    if number is not None:
        print(f"trial {number} of 0 to {len(planned) - 1}: {printable(chosen[0].name)}", file=sys.stderr, flush=True)
    study = SweepStudy(options, command, settings)
    if chosen:
        study.add(planned, chosen)
    left, count = study.left(), options.trials or len(chosen)
    if left < count:
        ended = f"{count - left} of {count} trials have ended"
        print(ended if left else f"nothing to do: {ended}", file=sys.stderr, flush=True)
    _run(study, left * (options.seeds if options.trials else 1), is_whole=number is None)


def _run(study: SweepStudy, count: int, is_whole: bool) -> None:
    """Run the trials that are left, write the tables and the plot, and show them.

    count: of their jobs, at most. is_whole: whether they are all of the sweep; else the other tasks of an array have
    the rest. Raises TrainingError if one failed, Stopped if it was only asked to stop.
    """
    failures: dict[str, str] = {}
    series, only_stopped = JobSeries(os.environ), True
    begun: list[Trial] = []
    for failed in series.run(_jobs(study, begun), count):
        trial = begun[-1]
        if reason := failed or ("" if _has_ended(trial, study.folder) else "it ended without a result"):
            failures[trial.name] = reason
            only_stopped = only_stopped and series.status == Stopped.exit_status
        _write_tables(study, failures)
    rows = _write_tables(study, failures, plot=True)
    if is_whole and rows:
        _show(rows, study)
    if failures and only_stopped:
        raise Stopped("trials were asked to stop", "the same command continues them")
    if failures:
        raise TrainingError(f"{len(failures)} trial(s) failed: " + "; ".join(map(": ".join, failures.items())))


def _jobs(study: SweepStudy, begun: list[Trial]) -> Iterator[SeriesJob]:
    """The jobs of the sweep, of which each is taken when the one before it has ended. begun: gets their trials."""
    for proposal in study.proposals():
        for trial in proposal.trials:
            check_trial(trial, study.command, study.folder)
            if not _has_ended(trial, study.folder):
                begun.append(trial)
                yield _job(trial, proposal, study)
            if is_pruned(RecordedRun(study.folder / trial.name)):
                break
        study.ended(proposal)


def _has_ended(trial: Trial, folder: Path) -> bool:
    """Whether it is not to be run again: it has a result, or was pruned."""
    return has_result(trial, folder) or is_pruned(RecordedRun(folder / trial.name))


def _job(trial: Trial, proposal: Proposal, study: SweepStudy) -> SeriesJob:
    line = [sys.executable, "-m", "hvdtrain", *trial.command(study.command, study.folder)]
    title = printable(f"{trial.label}, seed {trial.seed}" if trial.label else f"seed {trial.seed}")
    log = study.folder / f"{trial.name}.log"
    job = SeriesJob(title, line, log, lambda: not has_result(trial, study.folder))
    if not study.options.prunes or trial is not proposal.trials[0]:
        return job
    early = EarlyEnd(proposal.trial, study.folder / trial.name)
    return job._replace(watch=early.look, excuse=early.excuse)


def _write_tables(study: SweepStudy, failures: dict[str, str], plot: bool = False) -> list[Combination]:
    """Write the tables, and perhaps the plot, of all trials in the folder, also of those that other processes run.

    failures: by the names of trials, those that are known here; the others are in the folders of their runs.
    """
    with exclusive(study.folder):
        trials = study.trials
        if not trials:
            return []
        rows = comparison.combinations(trials, study.folder)
        known = {trial.name: _failure(trial, study.folder) for trial in trials} | failures
        lines = [f"{name}: {reason}" for name, reason in known.items() if reason]
        page = comparison.markdown_page(rows, study.command, lines, _sentences(rows))
        contents: dict[str, str | bytes] = {"sweep.md": page, "sweep.csv": comparison.csv_page(rows)}
        if plot and (drawn := _drawn(rows, study)):
            contents[PLOT] = drawn
        write_outputs(study.folder, "--output", contents)
    return rows


def _drawn(rows: list[Combination], study: SweepStudy) -> bytes | None:
    try:
        return comparison.draw(study, comparison.score_of(rows))
    except MissingPackage as error:
        print(f"no {PLOT}: {error}", file=sys.stderr, flush=True)
        return None


def _failure(trial: Trial, folder: Path) -> str:
    """Why the trial failed, as the folder of its run says; empty where it did not, or does not say."""
    end = RecordedRun(folder / trial.name).end
    failed = end and end.status in ("failed", "hung") and not has_result(trial, folder)
    return printable(end.reason) if end and failed else ""


def _sentences(rows: list[Combination]) -> list[str]:
    """Whether trials that are to have the same weights do."""
    return bit_sentences([run for row in rows for run in row.runs])


def _show(rows: list[Combination], study: SweepStudy) -> None:
    """Print the table."""
    print(comparison.terminal_table(rows))
    for sentence in _sentences(rows):
        print(f"\n{paragraph(sentence)}")
    written = ["sweep.md", "sweep.csv", *([PLOT] if (study.folder / PLOT).is_file() else [])]
    print(
        f"\n{paragraph(comparison.definition(rows))}\nwritten to {printable(str(study.folder))}: {', '.join(written)}"
    )
