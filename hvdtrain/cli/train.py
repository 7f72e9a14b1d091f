"""Training, from a command line to an exit status: the same for `hvdtrain train` and the frameworks' entry points."""

from __future__ import annotations

import contextlib
import sys

from hvdtrain.config.job_options import split
from hvdtrain.config.option_parser import OptionParser
from hvdtrain.config.options import Config, Framework
from hvdtrain.config.sources import training_parser
from hvdtrain.doctor import examine_host
from hvdtrain.errors import UserError
from hvdtrain.system import rank_info, stacks
from hvdtrain.training.process import Ending, end, ending_process, prepare_host, read_options

PROGRAM = "python -m hvdtrain train"


def parser() -> OptionParser:
    return training_parser(PROGRAM)


def main(
    framework: Framework | None = None,
    program: str = PROGRAM,
    argv: list[str] | None = None,
) -> None:
    """Train with the options in `argv`, by default the command line's; ends the process with an exit status.

    framework: the only one that this entry point accepts. program: what --help calls it.
    """
    with ending_process() as ending:
        _train(ending, framework, program, sys.argv[1:] if argv is None else argv)
    from hvdtrain.runs.trackers.tracking import hanging

    if hanging():  # a tracker's threads or atexit handlers may never return
        end(rank_info.detect().rank, None, 0)


def starts_ranks(argv: list[str]) -> bool:
    """Whether a command line of training asks for ranks where no launcher has started this process as one."""
    if not split(argv)[0]:
        return False
    with contextlib.suppress(UserError):
        started = rank_info.detect()
        return started.size == 1 and started.launcher in ("none", "srun")
    return False


def _train(ending: Ending, framework: Framework | None, program: str, argv: list[str]) -> None:
    if of_job := split(argv)[0]:
        _, rank, size, _ = started = rank_info.detect()
        reason = f"{of_job[0]}: this process already is rank {rank} of {size} ({started.source})"
        raise UserError(reason, f"leave it out, or unset {started.source} if no launcher has started this process")
    config, runtime = read_options(framework, program, argv)
    ending.on_end = runtime.on_end
    if rank_info.detect().rank == 0 and not runtime.quiet:
        print(starting(config), file=sys.stderr, flush=True)
    prepare_host(config, runtime)
    from hvdtrain.training.train import train  # after the line above, as it takes a while

    train(config, runtime, examine_host)


def starting(config: Config) -> str:
    """What rank 0 says before imports that take seconds."""
    libraries = f"{stacks.TITLES[config.framework]}{' and Horovod' * config.over_horovod}"
    return f"starting rank 0 of {rank_info.detect().size}: importing {libraries} ..."
