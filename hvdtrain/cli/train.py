"""Training, from a command line to an exit status: the same for `hvdtrain train` and the frameworks' entry points."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.cli.rank_end import OTHER_RANKS_WAIT_S, UNEXPECTED_ERROR_WAIT_S, end, notify
from hvdtrain.config.options import TITLES, Config, Framework, RuntimeOptions
from hvdtrain.errors import INTERRUPTED, HvdtrainError, RankRemoved, UserError
from hvdtrain.system import cores, rank_info
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.system.streams import output_errors, prepare_streams

log = logging.getLogger("hvdtrain")

JSON = "HVDTRAIN_JSON"
"""Environment variable by which a program asks for the list of strategies as JSON."""
NVIDIA = Path("/dev/nvidiactl")
"""It exists where NVIDIA's driver has a GPU."""


def main(
    framework: Framework | None = None,
    program: str = "python -m hvdtrain train",
    argv: list[str] | None = None,
) -> None:
    """Train with the options in `argv`, by default the command line's; ends the process with an exit status.

    framework: the only one that this entry point accepts. program: what --help calls it.
    """
    with ending_process() as ending:
        _train(ending, framework, program, _with_model(sys.argv[1:] if argv is None else argv))
    from hvdtrain.runs.trackers.delivery import hanging

    if hanging():  # threads of theirs, or functions that they have Python call at its end, may never return
        end(rank_info.detect().rank, None, 0)


@dataclass
class Ending:
    """What the end of a rank's process depends on, once its options are known."""

    on_end: str = ""
    """The command of --on-end."""


@contextlib.contextmanager
def ending_process() -> Iterator[Ending]:
    """Prepare this process to be a rank; an error inside ends it, with one line and an exit status."""
    rank, size, ending = 0, 1, Ending()
    _end_at_once_by_interrupt()
    prepare_streams()
    try:
        _, rank, size, _ = rank_info.detect()
        yield ending
        notify(ending.on_end, RunEnd("finished"))
    except RankRemoved as error:
        end(rank, Failure.of_exception(error), error.exit_status)
    except HvdtrainError as error:
        wait_s = OTHER_RANKS_WAIT_S if rank else 0.0
        end(rank, Failure.of_exception(error), error.exit_status, wait_s, ending.on_end)
    except SystemExit as ended:  # of a script, in its loop
        exit_status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        notify(ending.on_end, RunEnd.of_process(exit_status))
        raise
    except KeyboardInterrupt as error:
        end(rank, Failure.of_exception(error), INTERRUPTED, 0.0, ending.on_end)
    except Exception as error:
        log.error("%s", traceback.format_exc())
        where = " (the full traceback is in this rank's log)"
        if not log.handlers:
            where = ""
            traceback.print_exc()
        failure = Failure.of_exception(error)
        failure = failure._replace(reason=f"{failure.reason}{where}")
        end(rank, failure, 1, UNEXPECTED_ERROR_WAIT_S if size > 1 else 0.0, ending.on_end)


def _with_model(argv: list[str]) -> list[str]:
    """The command line, with --model before a FILE.py:NAME that it begins with."""
    return ["--model", *argv] if argv and is_reference(argv[0]) else argv


def _train(ending: Ending, framework: Framework | None, program: str, argv: list[str]) -> None:
    config, runtime = read_options(framework, program, argv)
    if os.environ.get(rank_info.ELASTIC_JOB) == "1":
        runtime = dataclasses.replace(runtime, elastic=True)
    ending.on_end = runtime.on_end
    if rank_info.detect().rank == 0 and not runtime.quiet:
        print(_starting(config), file=sys.stderr, flush=True)
    bind_to_cores(runtime)
    from hvdtrain.training.train import train  # after the line above, as it takes a while

    train(config, runtime, examine_host)


def bind_to_cores(runtime: RuntimeOptions) -> None:
    """Bind this rank to its share of the host's cores; before libraries start threads."""
    if runtime.bind == "auto":
        cores.bind(uses_gpu=runtime.device != "cpu" and NVIDIA.exists())


def read_options(framework: Framework | None, program: str, argv: list[str]) -> tuple[Config, RuntimeOptions]:
    """The options of a training command line; ends the process where they only ask for help.

    framework, program: see `main`. Raises UserError for options that cannot be parsed, and values that cannot work.
    """
    from hvdtrain.config.sources import CommandLine

    line = CommandLine.read(argv, program, framework)
    given = line.values
    printed = ""
    if given.get("help"):
        printed = line.help()
    elif given.get("strategy") == "help":
        printed = strategy_list(framework or given.get("framework", Config.framework)) if _is_rank_0() else ""
    elif given.get("print_config"):
        printed = line.to_toml()
    else:
        config, runtime = line.options()
        return config, as_launched(runtime)
    if _is_rank_0():
        with output_errors():
            _print(printed)
    end(rank_info.detect().rank, None, 0)


def as_launched(runtime: RuntimeOptions) -> RuntimeOptions:
    """The options with the name, and the request to resume, that hvdtrain's launcher gives this job by variables.

    Raises UserError for options that contradict them.
    """
    name, request = os.environ.get(rank_info.RUN_NAME, ""), os.environ.get(rank_info.RESUME, "")
    if runtime.resume:
        if request != "restarts":  # a job that is queued again resumes what it resumed at first
            return runtime
        reason = "--restarts resumes from the run's own folder, which --resume contradicts"
        raise UserError(reason, "give the run's --name and --runs, and no --resume", option="resume")
    if runtime.name and name and "SLURM_ARRAY_TASK_ID" in os.environ:
        reason = f"--array with --name {runtime.name}: all tasks would train the same run"
        raise UserError(reason, "omit --name: each task then has a run of its own", option="name")
    if not (runtime.name or name):
        return runtime
    return dataclasses.replace(runtime, name=runtime.name or name, auto_resume=runtime.auto_resume or bool(request))


def _is_rank_0() -> bool:
    return rank_info.detect().rank == 0


def _print(text: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as TOML files are
    print(text, end="")


def strategy_list(framework: Framework) -> str:
    """The output of `--strategy help`: a framework's strategies, and why some do not run on this machine.

    Raises UserError if the framework is missing.
    """
    from hvdtrain.frameworks import registry, tuning

    tuning.set_environment()
    rows = registry.list_strategies(framework)
    if os.environ.get(JSON):
        return json.dumps([row._asdict() for row in rows]) + "\n"
    lines = [f"Strategies of {framework}, for --strategy; give --api to choose one of several styles", ""]
    for row in rows:
        lines.append(f"  {row.strategy:13} {row.api:8} {row.about}")
        lines += [f"  {'':22} not here: {row.problem}"] if row.problem else []
    return "\n".join(lines) + "\n"


def _starting(config: Config) -> str:
    """What rank 0 says before imports that take seconds."""
    libraries = f"{TITLES[config.framework]}{' and Horovod' * (config.strategy == 'horovod')}"
    return f"starting rank 0 of {rank_info.detect().size}: importing {libraries} ..."


def examine_host() -> list[dict[str, Any]]:
    """The doctor's findings on this host, for a run's record."""
    from hvdtrain.doctor.examination import quick

    return quick()


def _end_at_once_by_interrupt() -> None:
    """Until training handles Ctrl-C itself, it ends the process at once: also in a framework's import or start.

    Python's own handler waits until a library returns, and then prints a traceback. A process that ignores Ctrl-C, as
    in the background of a shell, still does.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
