"""python -m hvdtrain replay RUN: train a part of a run again, and say whether the bits are those that it recorded.

Each rank runs it, alone or under any launcher, as it runs training.
"""

from __future__ import annotations

from pathlib import Path

from hvdtrain.runs.best import step_of
from hvdtrain.system import rank_info
from hvdtrain.system.command import Parser, output_errors
from hvdtrain.system.text import printable
from hvdtrain.training.process import ending_process, prepare_host
from hvdtrain.views.run_view import RUNS, chosen_run


def main(argv: list[str]) -> None:
    """Replay; ends the process with 1 if the bits differ or training failed, 2 for invalid options."""
    with ending_process():
        options = parser().parse_args(argv)
        from hvdtrain.training import replay

        named = next(filter(None, map(step_of, (options.run, RUNS / options.run))), None)
        last = named if options.last is None else options.last
        segment = replay.choose(chosen_run(options.run), options.first, last, options.strategy)
        prepare_host(segment.config, segment.runtime)
        found, (rank, size) = replay.replay(segment), rank_info.detect()[1:3]
        if rank == 0:
            steps = f"step {segment.first} to {segment.config.max_steps} of {printable(str(segment.folder))}"
            by = f"with {segment.config.strategy} on {size} rank(s)"
            with output_errors():
                print(f"the same bits: {found.parameters}, {found.compared} hash(es) of {steps}, {by}")


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain replay",
        description="Train again from a checkpoint of a run to a later step, in a temporary folder and with the ranks "
        "that this job has, and say whether the weights are bit for bit those that the run recorded. The exit status "
        "is 0 if they are, 1 if not.",
    )
    add = made.add_argument
    add("run", type=Path, metavar="RUN",
        help="a run's folder, or its name in runs/; a checkpoint, or RUN/best, for the steps up to it")  # fmt: skip
    add("--from", dest="first", type=int, metavar="STEP",
        help="step of the checkpoint to begin from, 0 for the initial weights (default: the newest)")  # fmt: skip
    add("--to", dest="last", type=int, metavar="STEP",
        help="last step, of which the run recorded a hash (default: that of the checkpoint RUN "
             "names, else the last one that has one)")  # fmt: skip
    add("--strategy", default="", metavar="NAME", help="how gradients are combined, instead of the run's own strategy")
    return made
