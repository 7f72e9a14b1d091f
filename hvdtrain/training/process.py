"""The process of a rank: its options, its cores, and its end with an exit status.

An error is one line, in the rank's log and on one console.
"""

from __future__ import annotations

import bdb
import contextlib
import dataclasses
import io
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hvdtrain.collectives.limits import shut_down_horovod
from hvdtrain.config import rules
from hvdtrain.config.options import AUTO_RESUME, Config, Framework, RuntimeOptions
from hvdtrain.errors import INTERRUPTED, HvdtrainError, UserError
from hvdtrain.system import agent_pipe, arithmetic, rank_info, resources, stacks
from hvdtrain.system.command import output_errors, prepare_streams
from hvdtrain.system.processes import ProcessIdentity
from hvdtrain.system.run_end import Failure, RunEnd, how_to_resume, run_on_end
from hvdtrain.system.text import printable

log = logging.getLogger("hvdtrain")
PACKAGE = Path(__file__).parents[1]
IN_LOG = " (the full traceback is in this rank's log)"

JSON = "HVDTRAIN_JSON"
"""Environment variable by which a program asks for the list of strategies as JSON."""
NVIDIA = Path("/dev/nvidiactl")
"""It exists where NVIDIA's driver has a GPU."""

# Under hvdtrain's launcher a rank hands over its error, and the launcher prints the first one. Another launcher ends
# the job when the first of its processes fails, so the rank that ends first is the one whose error is seen: rank 0 for
# an error of all ranks, then a rank that failed alone, last those that only lost another rank.
OTHER_RANKS_WAIT_S = 2.0
UNEXPECTED_ERROR_WAIT_S = 4.0
FOLDER_WAIT_S = 2.0
"""How long the end of the process may wait for a run's folder that does not respond."""
SHUTDOWN_LIMIT_S = 2.0
ON_END_LIMIT_S = 20.0
"""How long the command of --on-end may take: other ranks may wait, and the least --hang-timeout is 30 s."""


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
    except (SystemExit, bdb.BdbQuit) as ended:
        if isinstance(ended, bdb.BdbQuit) or _is_of_pdb(ended):
            left = UserError("the debugger ended", "without a terminal, as under a launcher, see docs/own-loop.md")
            end(rank, Failure.of_exception(left), left.exit_status, command=ending.on_end)
        # A script ends in its loop.
        exit_status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        notify(ending.on_end, RunEnd.of_process(exit_status))
        raise
    except KeyboardInterrupt as error:
        end(rank, Failure.of_exception(error), INTERRUPTED, command=ending.on_end)
    except Exception as error:
        failure = Failure.of_exception(known := stacks.known_error(error) or error)
        if isinstance(known, HvdtrainError):
            if known.__cause__ and _show_cause(known.__cause__, rank, bool(failure.traceback)):
                failure = replace(failure, reason=f"{failure.reason}{IN_LOG}")
            end(rank, failure, known.exit_status, OTHER_RANKS_WAIT_S if rank else 0.0, ending.on_end)
        if failure.traceback and log.handlers:
            _show_cause(error, rank, True)
        elif log.handlers:
            log.error("%s", traceback.format_exc())
        elif not failure.traceback:
            traceback.print_exc()
        failure = replace(failure, reason=f"{failure.reason}{IN_LOG if log.handlers else ''}")
        end(rank, failure, 1, UNEXPECTED_ERROR_WAIT_S if size > 1 else 0.0, ending.on_end)


def _is_of_pdb(error: SystemExit) -> bool:
    """Whether pdb has ended: from Python 3.14 on, it exits where it raised BdbQuit before."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return innermost.f_globals.get("__name__") == "pdb"


def _show_cause(error: BaseException, rank: int, has_user_lines: bool) -> bool:
    """Write the traceback of an exception in the user's code to this rank's log; before that is open, rank 0 prints it.

    has_user_lines: whether the error's message shows a part of it, so that rank 0 prints nothing here. It begins where
    the package calls that code. Returns whether it is in the log.
    """
    trace = error.__traceback__
    while trace and trace.tb_next and Path(trace.tb_frame.f_code.co_filename).is_relative_to(PACKAGE):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    if log.handlers:
        from hvdtrain.runs.console import log_to_file

        log_to_file(logging.ERROR, text)
    elif rank == 0 and not has_user_lines:
        print(text, end="", file=sys.stderr)
    return bool(log.handlers)


def end(rank: int, failure: Failure | None, status: int, wait_s: float = 0.0, command: str = "") -> NoReturn:
    """Write the failure to this rank's log, hand it to the launcher or print it, run a command, and end.

    It waits for no rank that no longer responds. wait_s: before the failure is printed here. command: that of --on-end.
    """
    if failure and failure.reason:
        _report(rank, failure, wait_s)
    notify(command, RunEnd.of_process(status, failure))
    with contextlib.suppress(OSError):  # a full disk or a closed pipe
        sys.stdout.flush()
    sys.stderr.flush()
    shut_down_horovod(SHUTDOWN_LIMIT_S)
    os._exit(status)


def notify(command: str, end: RunEnd) -> None:
    """On rank 0, run the command of --on-end, if there is one. What fails is logged, and changes nothing."""
    if not command:
        return
    rank, folder = None, None
    if log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import open_folder, open_rank

        rank, folder = open_rank(), open_folder()
    if (rank_info.detect().rank if rank is None else rank) == 0:
        problem = run_on_end(command, end, folder, ON_END_LIMIT_S)
        if problem:
            log.warning("%s", problem)


@contextlib.contextmanager
def notifying(command: str) -> Iterator[None]:
    """Run the command of --on-end when what is inside ends, in a program that continues afterwards."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        notify(command, RunEnd.of_exception(error))
        raise
    notify(command, RunEnd("finished"))


def _report(rank: int, failure: Failure, wait_s: float) -> None:
    if log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import log_to_file

        log_to_file(logging.ERROR, str(failure))
    if agent_pipe.send(failure):
        return
    time.sleep(wait_s)
    advice = _how_to_resume() if failure.resumable and not rank else ""
    said = f"{printable(str(failure.of_rank(rank, '')))}{advice}{failure.indented_traceback}"
    print(f"hvdtrain: {said}", file=sys.stderr, flush=True)


def _how_to_resume() -> str:
    """The end of the message of a run that has a checkpoint, and that has not finished before this error."""
    if not log.handlers:
        return ""
    from hvdtrain.runs.console import open_folder

    folder, advice = open_folder(), [""]

    def read() -> None:
        with contextlib.suppress(OSError):
            end = folder and RunEnd.read(folder)
            advice.append("" if end and end.status == "finished" else how_to_resume(folder))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(FOLDER_WAIT_S)
    return advice[-1]


def prepare_host(config: Config, runtime: RuntimeOptions) -> None:
    """Bind this rank to its share of the host's cores, and hold its arithmetic; before libraries are imported.

    Raises UserError if this host does not have the instruction set of --isa.
    """
    if runtime.bind == "auto":
        resources.bind_cores(uses_gpu=runtime.device != "cpu" and NVIDIA.exists())
    arithmetic.hold(config.threads, config.isa, config.shards)


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
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")  # as TOML files are
            print(printed, end="")
    end(rank_info.detect().rank, None, 0)


def as_launched(runtime: RuntimeOptions) -> RuntimeOptions:
    """The options with the name, and the request to resume, that hvdtrain's launcher gives this job by variables.

    Raises UserError for options that contradict them.
    """
    name, request = os.environ.get(rank_info.RUN_NAME, ""), os.environ.get(rank_info.RESUME, "")
    is_in_array = bool(name and "SLURM_ARRAY_TASK_ID" in os.environ)
    rules.check(runtime, restarts=request == "restarts", is_in_array=is_in_array)
    if runtime.resumed or not (runtime.name or name):  # a job that is queued again resumes what it resumed at first
        return runtime
    resume = AUTO_RESUME if request else runtime.resume
    return dataclasses.replace(runtime, name=runtime.name or name, resume=resume)


def _is_rank_0() -> bool:
    return rank_info.detect().rank == 0


def strategy_list(framework: Framework) -> str:
    """The output of `--strategy help`: a framework's strategies, and why some do not run on this machine.

    Raises UserError if the framework is missing.
    """
    from hvdtrain.frameworks import preparation, registry

    preparation.set_environment()
    rows = registry.list_strategies(framework)
    if os.environ.get(JSON):
        return json.dumps([row._asdict() for row in rows]) + "\n"
    lines = [f"Strategies of {framework}, for --strategy", ""]
    width = max(len(row.strategy) for row in rows)
    for row in rows:
        lines.append(f"  {row.strategy:{width}} {row.about}")
        lines += [f"  {'':{width}} not here: {row.problem}"] if row.problem else []
    return "\n".join(lines) + "\n"


def _end_at_once_by_interrupt() -> None:
    """Until training handles Ctrl-C itself, it ends the process at once: also in a framework's import or start.

    Python's own handler waits until a library returns, and then prints a traceback. A process that ignores Ctrl-C, as
    in the background of a shell, still does.
    """
    if (handler := signal.getsignal(signal.SIGINT)) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The agent's signals are for this process, from now on, and whatever its shell ignores.
    if agent_pipe.send(ProcessIdentity.current()) and handler == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
