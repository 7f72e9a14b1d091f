"""python -m hvdtrain sweep: train with all combinations of some options, each in a job of its own, and compare them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from hvdtrain.cli import launch, launch_options, sweep_options
from hvdtrain.cli.sweep_options import parser as parser
from hvdtrain.config.option import arguments, as_json
from hvdtrain.config.options import Framework
from hvdtrain.config.sources import CommandLine, to_record
from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.measure.sweep import pages
from hvdtrain.measure.sweep.outcomes import Combination, combinations, failure
from hvdtrain.measure.sweep.trials import (
    GIVEN_TO_TRIALS,
    SweepRecord,
    Trial,
    exclusive,
    is_complete,
    plan,
)
from hvdtrain.runs.run import Run
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
    trials = plan(sweep_options.settings(options, command), options.seeds)
    number = sweep_options.trial_number(options, len(trials))
    chosen = trials if number is None else trials[number : number + 1]
    expected = _expected(chosen, command)
    if options.dry_run:
        for trial in chosen:
            print(shlex.join(["hvdtrain", *trial.command(command, options.output)]))
        return
    if number is not None:
        print(f"trial {number} of 0 to {len(trials) - 1}: {printable(chosen[0].name)}", file=sys.stderr, flush=True)
    run(chosen, trials, expected, command, options.output)


class _Training(NamedTuple):
    """The training program of the command, as far as it is hvdtrain's own."""

    program: str
    framework: Framework | None
    options: list[str]


def _training(command: list[str]) -> _Training | None:
    """The training program that the command starts; None for one that is not hvdtrain's. Raises UserError."""
    if command[0] == "train":
        training: _Training | None = _Training("hvdtrain train", None, command[1:])
    else:
        training = _launched(command[1:])
    for name, remedy in GIVEN_TO_TRIALS.items():
        option = f"--{name.replace('_', '-')}"
        if training and any(word.partition("=")[0] == option for word in training.options):
            raise UserError(f"-- {command[0]} ... {option}: a sweep sets that itself", remedy)
    return training


def _launched(words: list[str]) -> _Training | None:
    """The training program of `launch`; None for one that is not hvdtrain's. Raises UserError for invalid ones."""
    options = launch_options.parse(words)
    if options.launcher == "sbatch":
        reason = "-- launch sbatch: it only submits a job, and a sweep waits for each to end"
        raise UserError(reason, "run the sweep itself in a batch job, with -- launch srun")
    if options.launcher not in LAUNCHERS:
        raise UserError(f"-- launch {options.launcher}: it starts no job", f"give one of {', '.join(LAUNCHERS)}")
    if not options.program:
        raise UserError("-- launch: no program", "write it after another --, as for launch itself")
    launch.describe(options)
    return training_program(options.program)


def training_program(program: Sequence[str]) -> _Training | None:
    """What a launcher's program trains; None for one that is not hvdtrain's, whose options are not checked before."""
    for index, argument in enumerate(program):
        entry = re.fullmatch(r"hvdtrain\.(torch|mxnet|tensorflow)_lenet", argument)
        if entry and program[index - 1].endswith("m"):
            framework = cast("Framework", entry[1])
            return _Training(f"python -m {argument}", framework, list(program[index + 1 :]))
        if Path(argument).name == "hvdtrain" and list(program[index + 1 : index + 2]) == ["train"]:
            return _Training("hvdtrain train", None, list(program[index + 2 :]))
    return None


def _expected(trials: list[Trial], command: list[str]) -> dict[str, dict[str, Any]]:
    """By the trials' names, the options as JSON values with which their runs will be recorded.

    Raises UserError for options that no training accepts; of an unknown program, these are only the trial's own.
    """
    expected, by_label = {}, {}
    for trial in trials:
        options, training = {"seed": trial.seed, **as_json(trial.training_options)}, _training(trial.launched(command))
        if training:
            if trial.label not in by_label:
                by_label[trial.label] = _recorded(trial, training)
            options |= {**by_label[trial.label], "seed": trial.seed}
        else:
            options.pop("set", None)  # the program may give arguments of its own
        expected[trial.name] = options
    return expected


def _recorded(trial: Trial, training: _Training) -> dict[str, Any]:
    """Options of training, without those that a sweep sets."""
    given = [*training.options, *arguments(trial.training_options), "--name", trial.name, "--auto-resume"]
    try:
        line = CommandLine.read(given, training.program, training.framework)
        config, _ = line.options()
    except UserError as error:
        which = f"the trials with {trial.label}" if trial.label else "the trials' command"
        raise UserError(f"{which}: {error.reason}", error.remedy, option=error.option) from None
    arguments_given = [setting.partition("=")[0] for setting in config.set]
    if repeated := {name for name in arguments_given if arguments_given.count(name) > 1}:
        raise UserError(
            f"the trials' command: --set {min(repeated)} has a value already", "leave it out of one of both"
        )
    if line.given.get("help") or line.given.get("print_config"):
        raise UserError("the trials' command prints and trains nothing", "give options of training")
    return to_record(config)


def show_table(output: Path) -> None:
    """Write and print the table of a sweep's folder. Raises UserError if there is none."""
    _show(_write_tables(output, SweepRecord.read(output).command, {}, plot=True), output)


def run(
    chosen: list[Trial], planned: list[Trial], expected: dict[str, dict[str, Any]], command: list[str], output: Path
) -> None:
    """Run those of the chosen trials that are not complete, and write the tables and the plot.

    planned: all trials of the sweep. Several processes may run trials of one sweep at the same time. Raises
    TrainingError if one failed, Stopped if it was only asked to stop.
    """
    require_writable(output, "--output")
    missing = [trial for trial in chosen if not is_complete(trial, output, expected[trial.name])]
    with exclusive(output):
        SweepRecord(output, command).add(planned)
    if len(missing) < len(chosen):
        complete = f"{len(chosen) - len(missing)} of {len(chosen)} trials are complete"
        print(complete if missing else f"nothing to do: {complete}", file=sys.stderr, flush=True)
    failures: dict[str, str] = {}
    series, only_stopped = JobSeries(os.environ), True
    for trial, failed in zip(missing, series.run([_job(trial, command, output) for trial in missing]), strict=True):
        reason = failed or ("" if _has_result(trial, output) else "it ended without a result")
        if reason:
            failures[trial.name] = reason
            only_stopped = only_stopped and series.status == Stopped.exit_status
        _write_tables(output, command, failures)
    rows = _write_tables(output, command, failures, plot=True)
    if len(chosen) == len(planned):  # else the other tasks of an array have the rest
        _show(rows, output)
    if failures and only_stopped:
        raise Stopped("trials were asked to stop", "the same command continues them")
    if failures:
        raise TrainingError(f"{len(failures)} trial(s) failed: " + "; ".join(map(": ".join, failures.items())))


def _has_result(trial: Trial, output: Path) -> bool:
    return (output / trial.name / "result.json").is_file()


def _job(trial: Trial, command: list[str], output: Path) -> SeriesJob:
    line = [sys.executable, "-m", "hvdtrain", *trial.command(command, output)]
    title = f"{trial.label}, seed {trial.seed}" if trial.label else f"seed {trial.seed}"
    return SeriesJob(printable(title), line, output / f"{trial.name}.log", lambda: not _has_result(trial, output))


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
    return bit_sentences([Run(output / trial.name) for trial in trials if _has_result(trial, output)])


def _show(rows: list[Combination], output: Path) -> None:
    """Print the table."""
    print(pages.terminal_table(rows))
    for sentence in _sentences(SweepRecord.read(output).trials, output):
        print(f"\n{paragraph(sentence)}")
    written = ["sweep.md", "sweep.csv", *([PLOT] if (output / PLOT).is_file() else [])]
    print(f"\n{paragraph(pages.definition(rows))}\nwritten to {printable(str(output))}: {', '.join(written)}")
