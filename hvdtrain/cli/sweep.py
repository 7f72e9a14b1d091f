"""python -m hvdtrain sweep: train with all combinations of some options, each in a job of its own, and compare them."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple, cast

from hvdtrain.cli import launch, launch_options
from hvdtrain.cli.exit_status import exit_status
from hvdtrain.cli.parser import Parser
from hvdtrain.cli.rank_end import without_box
from hvdtrain.cli.training_options import parse
from hvdtrain.config.option_values import arguments
from hvdtrain.config.options import Framework
from hvdtrain.config.record import as_json, to_record
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.jobs.program import own_program
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.report.writing import write_pages
from hvdtrain.sweep import chart, tables
from hvdtrain.sweep.outcomes import Combination, combinations
from hvdtrain.sweep.trials import OWN, SweepRecord, Trial, is_complete, parse_settings, plan
from hvdtrain.system.files import require_writable
from hvdtrain.system.text import did_you_mean, printable

EXAMPLES = """COMMAND is what follows `hvdtrain` on a command line: train, or launch with a training program.
Each trial adds its options, and the folder and name of its run, to the end of it.

examples:
  hvdtrain sweep --set lr=0.05,0.1 --seeds 3 -- launch local -n 2 -- python -m hvdtrain.torch_lenet --epochs 3
  hvdtrain sweep --set optimizer=sgd,adam --set batch-size=32,64 -- train --config run.toml
"""
COMMANDS = ("train", "launch")
WIDEST = 100
"""Width of the table in a wide terminal, or in a file."""


@exit_status()
def main(argv: list[str]) -> None:
    """Run the sweep; ends the process with 1 if a trial failed, 2 for invalid options."""
    own, command = _split(argv)
    options = _parser().parse_args(own)
    _check(options)
    settings, training = parse_settings(options.settings), _training(command)
    trials = plan(settings, options.seeds)
    expected = _expected(trials, training)
    if options.dry_run:
        for trial in trials:
            print(shlex.join(["hvdtrain", *command, *trial.arguments(options.output)]))
        return
    run(trials, expected, command, options.output)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m hvdtrain sweep",
        usage="python -m hvdtrain sweep [--set NAME=V1,V2,...]... [--seeds N] [--output DIR] [--dry-run] -- COMMAND...",
        description="Train with all combinations of some options, each in a job of its own, and compare the results.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--set", dest="settings", action="append", default=[], metavar="NAME=V1,V2",
        help="values of an option of training; with several --set, all combinations")  # fmt: skip
    add("--seeds", type=int, default=1, metavar="N", help="train each combination with the seeds 0 to N-1 (default: 1)")
    add("--output", "--out", type=Path, default=Path("runs/sweep"), metavar="DIR",
        help="folder for the runs and the tables; trials in it that are complete are not run again (default: runs/sweep)")  # fmt: skip  # noqa: E501
    add("--dry-run", action="store_true", help="print the command line of each trial, and start nothing")
    return parser


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The sweep's own options, and the command after --, without the name of this program. Raises UserError."""
    end = argv.index("--") if "--" in argv else len(argv)
    own, command = argv[:end], argv[end + 1 :]
    if "-h" in own or "--help" in own:
        return own, command
    if command[:1] == ["hvdtrain"]:
        command = command[1:]
    elif command[1:3] == ["-m", "hvdtrain"]:
        command = command[3:]
    remedy = "write -- train OPTIONS, or -- launch local -n 2 -- python -m hvdtrain.torch_lenet OPTIONS"
    if not command:
        raise UserError("no command to run", remedy)
    if command[0] not in COMMANDS:
        raise UserError(f"-- {command[0]}: a sweep runs train or launch{did_you_mean(command[0], COMMANDS)}", remedy)
    return own, command


def _check(options: argparse.Namespace) -> None:
    if [] in (options.output, options.seeds, *options.settings):  # Python 3.11's argparse makes it of `--output=--`
        raise UserError("-- is no value of an option", "write it between the sweep's options and the command")
    if options.seeds < 1:
        raise UserError(f"--seeds {options.seeds} is too small", "give 1 or more")


class _Training(NamedTuple):
    """The training program of the command, as far as it is hvdtrain's own."""

    program: str
    framework: Framework | None
    options: list[str]


def _training(command: list[str]) -> _Training | None:
    """The training program that the command starts; None for one that is not hvdtrain's. Raises UserError."""
    if command[0] == "train":
        found = _Training("hvdtrain train", None, command[1:])
    else:
        options = launch_options.parse(command[1:])
        if options.launcher == "sbatch":
            reason = "-- launch sbatch: it only submits a job, and a sweep waits for each to end"
            raise UserError(reason, "run the sweep itself in a batch job, with -- launch srun")
        if not options.program:
            raise UserError("-- launch: no program", "write it after another --, as for launch itself")
        launch.describe(options)
        own = own_program(options.program)
        if not own:
            return None
        framework = cast("Framework | None", own.framework or None)
        found = _Training(f"python -m hvdtrain.{framework}_lenet" if framework else "train", framework, [*own.options])
    for name, remedy in OWN.items():
        option = f"--{name.replace('_', '-')}"
        if any(one.partition("=")[0] == option for one in found.options):
            raise UserError(f"-- {command[0]} ... {option}: a sweep sets that itself", remedy)
    return found


def _expected(trials: list[Trial], training: _Training | None) -> dict[str, dict[str, Any]]:
    """By the trials' names, the options as JSON values with which their runs will be recorded.

    Raises UserError for options that no training accepts; of an unknown program, these are only the trial's own.
    """
    found, by_label = {}, {}
    for trial in trials:
        options = {"seed": trial.seed, **as_json(trial.options)}
        if training:
            if trial.label not in by_label:
                by_label[trial.label] = _recorded(trial, training)
            options = {**by_label[trial.label], **options}
        found[trial.name] = options
    return found


def _recorded(trial: Trial, training: _Training) -> dict[str, Any]:
    """Options of training, without those that a sweep sets."""
    line = [*training.options, *arguments(trial.options), "--name", trial.name, "--auto-resume"]
    printed, hidden = io.StringIO(), io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(hidden):
            config, _ = parse(line, training.program, training.framework)
    except SystemExit as ended:
        text = without_box(printed.getvalue())
        reason = f"the trials' command: {text}" if ended.code else "the command prints its help and trains nothing"
        raise UserError(reason, "give options of training") from None
    return to_record(config)


def run(trials: list[Trial], expected: dict[str, dict[str, Any]], command: list[str], output: Path) -> None:
    """Run the trials that are not complete, and write the tables and the plot. Raises TrainingError if one failed."""
    require_writable(output, "--output")
    record = SweepRecord(output, command)
    missing = [trial for trial in trials if not is_complete(trial, output, expected[trial.name])]
    record.add(trials)
    if len(missing) < len(trials):
        print(f"{len(trials) - len(missing)} of {len(trials)} trials are complete", file=sys.stderr, flush=True)
    failures: list[str] = []
    series = JobSeries(os.environ)
    for trial, failed in zip(missing, series.run([_job(one, command, output) for one in missing]), strict=True):
        reason = failed or ("" if _has_result(trial, output) else "it ended without a result")
        failures += [f"{trial.name}: {reason}"] if reason else []
        _write_tables(combinations(record.trials, output), command, failures, output)
    _show(combinations(record.trials, output), command, failures, output)
    if failures:
        raise TrainingError(f"{len(failures)} trial(s) failed: " + "; ".join(failures))


def _has_result(trial: Trial, output: Path) -> bool:
    return (output / trial.name / "result.json").is_file()


def _job(trial: Trial, command: list[str], output: Path) -> SeriesJob:
    line = [sys.executable, "-m", "hvdtrain", *command, *trial.arguments(output)]
    title = f"{trial.label}, seed {trial.seed}" if trial.label else f"seed {trial.seed}"
    return SeriesJob(printable(title), line, output / f"{trial.name}.log")


def _write_tables(found: list[Combination], command: list[str], failures: list[str], output: Path) -> None:
    write_pages(output, {"sweep.md": tables.to_markdown(found, command, failures), "sweep.csv": tables.to_csv(found)})


def _show(found: list[Combination], command: list[str], failures: list[str], output: Path) -> None:
    """Write tables and plot, and print the table."""
    _write_tables(found, command, failures, output)
    plot = chart.draw(found)
    if plot:
        write_pages(output, {"sweep.png": plot})
    print(tables.to_terminal(found, min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)))
    written = ["sweep.md", "sweep.csv", *(["sweep.png"] if plot else [])]
    print(f"\n{tables.DEFINITION}\nwritten to {printable(str(output))}: {', '.join(written)}")
