"""python -m hvdtrain replay RUN: train a part of a run again, and say whether the bits are those that it recorded.

Each rank runs it, alone or under any launcher, as it runs training.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hvdtrain.cli.train import starting
from hvdtrain.runs.best import step_of
from hvdtrain.runs.segment import Segment
from hvdtrain.system import rank_info
from hvdtrain.system.command import Parser, output_errors
from hvdtrain.system.text import printable
from hvdtrain.training.process import ending_process, prepare_host
from hvdtrain.views.run_view import RUNS, chosen_run

EXAMPLES = """examples:
  hvdtrain replay runs/NAME
  hvdtrain replay runs/NAME/best
  horovodrun -np 3 python -m hvdtrain replay runs/NAME --from 230 --to 276
  hvdtrain launch local -n 3 -- python -m hvdtrain replay runs/NAME --strategy ring

exit status: 0 if the bits are the same, 1 if they differ or training fails
"""


def main(argv: list[str]) -> None:
    """Replay; ends the process with 1 if the bits differ or training failed, 2 for invalid options."""
    with ending_process():
        _replay(argv)


def _replay(argv: list[str]) -> None:
    options = parser().parse_args(argv)
    from hvdtrain.training import replay

    folder, last = chosen_run(options.run), options.last
    if last is None:
        last = next(filter(None, map(step_of, (options.run, RUNS / options.run))), None)
    segment = Segment.choose(folder, options.first, last)
    config, runtime = replay.options(segment, options.strategy, options.quiet)
    rank, size = rank_info.detect()[1:3]
    if rank == 0 and not options.quiet:
        print(starting(config), file=sys.stderr, flush=True)
    prepare_host(config, runtime)
    verdict = replay.replay(segment, config, runtime)
    if rank == 0:
        with output_errors():
            steps = f"step {segment.first} to {segment.last.step} of {printable(str(folder))}, with {config.strategy}"
            print(f"the same bits: {verdict.parameters}, {verdict.compared} hash(es) of {steps} on {size} rank(s)")


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not the number of a step")
    return int(text)


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain replay",
        description="Train again from a checkpoint of a run to a later step, in a temporary folder and with the ranks "
        "that there are, and say whether the weights are bit for bit those that the run recorded.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "run",
        type=Path,
        metavar="RUN",
        help="a run's folder, or its name in runs/; a checkpoint, also as RUN/best, for the steps up to it",
    )
    add("--from", dest="first", type=_step, metavar="STEP",
        help="step of the checkpoint to begin from, 0 for the initial weights (default: the newest)")  # fmt: skip
    add("--to", dest="last", type=_step, metavar="STEP",
        help="last step, of which the run recorded a hash (default: that of the checkpoint RUN "
             "names, else the last one that has one)")  # fmt: skip
    add("--strategy", default="", metavar="NAME", help="how gradients are combined, instead of the run's own strategy")
    add("--quiet", action="store_true", help="print only the result")
    return made
