"""python -m hvdtrain watch [RUN]: follow a run while it trains, on this machine or another that sees its folder.

With --serve, a web page follows all runs of some folders. Both only read, so that they can be started and left at any
time.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from hvdtrain.errors import UserError, needed_by
from hvdtrain.system.command import Parser, end_with_reader, exit_status
from hvdtrain.views.run_view import RUNS, awaited_run, chosen_run
from hvdtrain.views.table import Output


@exit_status()
def main(argv: list[str]) -> None:
    """Show the run until it ends, then exit with its job's status, or serve the page; with 0 if the user leaves."""
    options = parse(argv)
    end_with_reader()
    if options.serve:
        with needed_by("watch --serve", "web"):
            from hvdtrain.views.web.app import serve

        serve(options.runs, options.serve, options.token_file, lambda line: print(line, flush=True))
        return
    if len(options.runs) > 1:
        raise UserError(f"{len(options.runs)} runs: a terminal shows one", "give one run, or --serve for a page of all")
    from hvdtrain.views.terminal.follow import follow

    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(follow(_run(options), Output()))


def _run(options: argparse.Namespace) -> Path:
    (path,) = options.runs
    if options.wait:
        return awaited_run(path, lambda line: print(line, file=sys.stderr, flush=True))
    try:
        return chosen_run(path)
    except UserError as error:
        raise UserError(error.reason, f"{error.remedy}; --wait waits for a run that is not there yet") from None


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain watch",
        description="Follow a run: its state, its ranks, curves and messages. Ctrl-C leaves; the run goes on.",
        epilog="The exit status is that of the run's job; 0 after Ctrl-C.",
    )
    add = made.add_argument
    add("runs", nargs="*", type=Path, default=[RUNS], metavar="RUN",
        help="a run's folder, or a folder of runs, of which the newest is followed (default: runs)")  # fmt: skip
    add("--wait", action="store_true", help="wait for the run if it is not there yet")
    add("--serve", metavar="HOST:PORT",
        help="serve a web page of all these runs instead; 127.0.0.1:0 takes a free port")  # fmt: skip
    add("--token-file", type=Path, metavar="FILE",
        help="with --serve: holds the token that browsers need (default: none on loopback, else random)")  # fmt: skip
    return made


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; exits for invalid ones. Raises UserError for options that do not go together."""
    options = parser().parse_args(argv)
    if options.token_file and not options.serve:
        raise UserError("--token-file: there is no page", "give --serve HOST:PORT as well")
    if options.wait and options.serve:
        raise UserError("--wait: the page shows runs as they come", "leave it out with --serve")
    return options
