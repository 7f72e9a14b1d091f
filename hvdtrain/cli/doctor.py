"""python -m hvdtrain doctor: what is wrong with an installation, a machine or a job, and how to fix it.

Without a launcher it examines this machine and starts two processes; started by a launcher it examines every rank, and
rank 0 prints the report. It imports no framework: whatever may crash or hang runs in a subprocess with a time limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.examination import Options, examine
from hvdtrain.doctor.findings import STATUSES
from hvdtrain.doctor.registry import CHECKS, RENAMED
from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import check_access
from hvdtrain.system import rank_info
from hvdtrain.system.command import Parser, exit_status
from hvdtrain.system.files import require_writable, write_atomically
from hvdtrain.system.text import format_ranks, to_json

TOPICS = ("software", "jobs", "job", "machine", "network", "gpu")
COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@exit_status()
def main(argv: list[str]) -> None:
    """Examine, and print on rank 0; ends the process with 1 if a check failed, 2 for invalid options."""
    sys.exit(run(parse(argv)))


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; ends the process with 2 if they are invalid."""
    listed = "\n".join(f"  {one.name:14} {one.about}{', in a job' * (one.where == 'job')}" for one in CHECKS)
    parser = Parser(
        prog="python -m hvdtrain doctor",
        description="Find out what is wrong with the installation, this machine, or the job in which it is started.",
        epilog=f"checks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*(one.name for one in CHECKS), *RENAMED]
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the JSON object to FILE")
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="NAME", help="run only these checks")
    parser.add_argument("--hosts", default="", metavar="A,B", help="also check these hosts, over ssh")
    parser.add_argument("--ssh-port", type=int, default=0, metavar="N", help="port of sshd on these hosts")
    parser.add_argument("--ssh-key", type=Path, metavar="FILE", help="private key for ssh to these hosts")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks planned on this host; default: 2")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of runs; default: runs")
    given = parser.parse_args(argv)
    if given.ranks < 1:
        parser.error(f"--ranks {given.ranks}: give 1 or more")
    return given


def run(given: argparse.Namespace) -> int:
    """Examine, write and print the report; the exit status, which in a job is rank 0's."""
    rank = _rank()
    for name in set(given.only) & RENAMED.keys() if rank == 0 else ():
        print(f"hvdtrain: the check {name} is now called {RENAMED[name]}; use --only {RENAMED[name]}", file=sys.stderr)
    only = tuple(RENAMED.get(name, name) for name in given.only)
    hosts = tuple(filter(None, (host.strip() for host in given.hosts.split(","))))
    if given.output and rank == 0:
        require_writable(given.output.parent, "--output")
        if given.output.is_dir():
            raise UserError(f"--output {given.output} is a folder", "give a file")
    report = examine(Options(only, hosts, given.ranks, given.runs, check_access(given.ssh_port, given.ssh_key)))
    if rank != 0:
        for one in report["findings"]:
            if one["check"] == "meeting" and one["status"] == "fail":
                print(f"hvdtrain: rank {rank}: {one['text']}", file=sys.stderr)
        return 0
    if given.output:
        write(given.output, report)
    show(report, given.json)
    return int(report["status"] == "fail")


def _rank() -> int:
    try:
        return rank_info.detect().rank
    except UserError:  # the check `variables` reports it
        return 0


def write(path: Path, report: dict[str, Any]) -> None:
    """Write the JSON object. Raises UserError if the file cannot be written."""
    try:
        write_atomically(path, to_json(report, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--output {path} cannot be written ({error.strerror})", "give another file") from None


def show(report: dict[str, Any], as_json: bool) -> None:
    """Print the report, as JSON or as text in the order of topics."""
    if as_json:
        print(to_json(report))
        return
    console = _console()
    for style, text in _lines(report):
        if console:
            console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text)


def _console() -> Any:
    """rich's console on a terminal; None elsewhere, or if rich is not installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Style and text of each line."""
    findings = report["findings"]
    for topic in TOPICS:
        of_topic = [one for one in findings if one["topic"] == topic]
        if of_topic:
            yield "bold", topic
        for one in of_topic:
            where = "" if one["everywhere"] else f"rank {format_ranks(one['ranks'])} ({', '.join(one['hosts'])}): "
            style = "" if one["status"] == "ok" else COLORS[one["status"]]
            yield style, f"  {one['status']:4} {one['check']}: {where}{one['text']}"
            if one["remedy"]:
                yield "", f"       -> {one['remedy']}"
    counts = {status: sum(one["status"] == status for one in findings) for status in STATUSES}
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    yield COLORS[report["status"]], f"{report['status']}: {summary}; {report['seconds']:.0f} s"
