"""python -m hvdtrain sweep: train with all combinations of some options, each in a job of its own, and compare them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hvdtrain.cli import sweep_options
from hvdtrain.cli.sweep_options import parser as parser
from hvdtrain.cli.sweep_programs import expected
from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.measure.sweep import pages
from hvdtrain.measure.sweep.outcomes import Combination, combinations, failure, is_pruned
from hvdtrain.measure.sweep.search import EarlyEnd, Search, corners
from hvdtrain.measure.sweep.trials import Settings, SweepRecord, Trial, exclusive, is_complete, plan
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable, write_outputs
from hvdtrain.system.text import printable
from hvdtrain.views.report.bits import bit_sentences
from hvdtrain.views.table import paragraph

PLOT = "sweep.png"


@exit_status()
def main(argv: list[str]) -> None:
    """Run the sweep; ends the process with 1 if a trial failed, 2 for invalid options."""
    words, command = sweep_options.split(argv)
    options = sweep_options.parse(words)
    if options.table:
        show_table(options.output)
        return
    settings = sweep_options.settings(options, command)
    if options.trials:
        expected(corners(settings), command)
        search(options, settings, command)
        return
    trials = plan(settings, options.seeds)
    number = sweep_options.trial_number(options, len(trials))
    chosen = trials if number is None else trials[number : number + 1]
    known = expected(chosen, command)
    if options.dry_run:
        for trial in chosen:
            print(shlex.join(["hvdtrain", *trial.command(command, options.output)]))
        return
    if number is not None:
        print(f"trial {number} of 0 to {len(trials) - 1}: {printable(chosen[0].name)}", file=sys.stderr, flush=True)
    run(chosen, trials, known, command, options.output)


def show_table(output: Path) -> None:
    """Write and print the table of a sweep's folder. Raises UserError if there is none."""
    _show(_write_tables(output, SweepRecord.read(output).command, {}, plot=True), output)


def run(
    chosen: list[Trial], planned: list[Trial], known: dict[str, dict[str, Any]], command: list[str], output: Path
) -> None:
    """Run those of the chosen trials that are not complete, and write the tables and the plot.

    planned: all trials of the sweep. known: by the trials' names, the options of their runs. Several processes may run
    trials of one sweep at the same time. Raises TrainingError if one failed, Stopped if it was only asked to stop.
    """
    require_writable(output, "--output")
    missing = [trial for trial in chosen if not is_complete(trial, output, known[trial.name])]
    with exclusive(output):
        SweepRecord(output, command).add(planned)
    if len(missing) < len(chosen):
        complete = f"{len(chosen) - len(missing)} of {len(chosen)} trials are complete"
        print(complete if missing else f"nothing to do: {complete}", file=sys.stderr, flush=True)
    failures, only_stopped = _train([(trial, _job(trial, command, output)) for trial in missing], None, command, output)
    # Else the other tasks of an array have the rest.
    _conclude(failures, only_stopped, command, output, is_whole=len(chosen) == len(planned))


def search(options: argparse.Namespace, settings: Settings, command: list[str]) -> None:
    """Train combinations that Optuna draws, and write the tables and the plot. Raises as `run` does."""
    output: Path = options.output
    if options.dry_run:
        raise UserError("--dry-run: what a search draws depends on the results before", "leave --trials out")
    require_writable(output, "--output")
    with exclusive(output):
        SweepRecord(output, command).add([])
    found = Search(output, settings, sweep_options.rules(options))
    left = found.left()
    if left < options.trials:
        complete = f"{options.trials - left} of {options.trials} trials have ended"
        print(complete if left else f"nothing to do: {complete}", file=sys.stderr, flush=True)
    failures, only_stopped = _train(
        _drawn(found, options.seeds, command, output), left * options.seeds, command, output
    )
    _conclude(failures, only_stopped, command, output)


def _drawn(found: Search, seeds: int, command: list[str], output: Path) -> Iterator[tuple[Trial, SeriesJob]]:
    """The jobs of a search, of which each is drawn when the one before has ended."""
    for proposal in found.proposals():
        runs = []
        for seed in range(seeds):
            trial = Trial(proposal.options, seed)
            with exclusive(output):
                SweepRecord(output, command).add([trial])
            run = RecordedRun(output / trial.name)
            if not is_complete(trial, output, expected([trial], command)[trial.name]) and not is_pruned(run):
                early = None if seed else found.early_end(proposal, run.folder)
                yield trial, _job(trial, command, output, early)
            runs.append(RecordedRun(output / trial.name))
            if is_pruned(runs[-1]):
                break
        found.ended(proposal, runs)


def _train(
    trials: Iterable[tuple[Trial, SeriesJob]], count: int | None, command: list[str], output: Path
) -> tuple[dict[str, str], bool]:
    """Run the jobs of trials. Returns why trials failed, by their names, and whether they were only asked to stop.

    count: of the jobs at most, where they are drawn one by one.
    """
    failures: dict[str, str] = {}
    series, only_stopped, running = JobSeries(os.environ), True, []

    def jobs() -> Iterator[SeriesJob]:
        for trial, job in trials:
            running.append(trial)
            yield job

    begun = jobs() if count is not None else list(jobs())
    for number, failed in enumerate(series.run(begun, count)):
        trial = running[number]
        pruned = is_pruned(RecordedRun(output / trial.name))
        reason = failed or ("" if pruned or _has_result(trial, output) else "it ended without a result")
        if reason:
            failures[trial.name] = reason
            only_stopped = only_stopped and series.status == Stopped.exit_status
        _write_tables(output, command, failures)
    return failures, only_stopped


def _conclude(
    failures: dict[str, str], only_stopped: bool, command: list[str], output: Path, is_whole: bool = True
) -> None:
    """Write the tables and the plot, and show them. Raises TrainingError or Stopped if trials have no result."""
    if not SweepRecord(output, command).trials:
        return
    rows = _write_tables(output, command, failures, plot=True)
    if is_whole:
        _show(rows, output)
    if failures and only_stopped:
        raise Stopped("trials were asked to stop", "the same command continues them")
    if failures:
        raise TrainingError(f"{len(failures)} trial(s) failed: " + "; ".join(map(": ".join, failures.items())))


def _has_result(trial: Trial, output: Path) -> bool:
    return (output / trial.name / "result.json").is_file()


def _job(trial: Trial, command: list[str], output: Path, early: EarlyEnd | None = None) -> SeriesJob:
    """The job of a trial. early: what may end it before its last step."""
    line = [sys.executable, "-m", "hvdtrain", *trial.command(command, output)]
    title = f"{trial.label}, seed {trial.seed}" if trial.label else f"seed {trial.seed}"
    job = SeriesJob(printable(title), line, output / f"{trial.name}.log", lambda: not _has_result(trial, output))
    return job._replace(watch=early.look, excuse=early.excuse) if early else job


def _write_tables(output: Path, command: list[str], failures: dict[str, str], plot: bool = False) -> list[Combination]:
    """Write the tables, and perhaps the plot, of all trials in the folder, also of those that other processes run.

    failures: by the names of trials, those that are known here; the others are in the folders of their runs.
    """
    with exclusive(output):
        trials = SweepRecord(output, command).trials
        rows = combinations(trials, output)
        known = {trial.name: failure(output / trial.name) for trial in trials} | failures
        lines = [f"{name}: {reason}" for name, reason in known.items() if reason]
        page = pages.markdown_page(rows, command, lines, _sentences(trials, output))
        contents = {"sweep.md": page, "sweep.csv": pages.csv_page(rows)}
        drawn = pages.draw(rows) if plot else None
        write_outputs(output, "--output", {**contents, **({PLOT: drawn} if drawn else {})})
    return rows


def _sentences(trials: list[Trial], output: Path) -> list[str]:
    """Whether trials that are to have the same weights do."""
    return bit_sentences([RecordedRun(output / trial.name) for trial in trials if _has_result(trial, output)])


def _show(rows: list[Combination], output: Path) -> None:
    """Print the table."""
    print(pages.terminal_table(rows))
    for sentence in _sentences(SweepRecord.read(output).trials, output):
        print(f"\n{paragraph(sentence)}")
    written = ["sweep.md", "sweep.csv", *([PLOT] if (output / PLOT).is_file() else [])]
    print(f"\n{paragraph(pages.definition(rows))}\nwritten to {printable(str(output))}: {', '.join(written)}")
