"""python -m hvdtrain doctor: what is wrong with an installation, a machine or a job, and how to fix it.

Without a launcher it examines this machine and starts two processes; started by a launcher it examines every rank, and
rank 0 prints the report. It imports no framework: whatever may crash or hang runs in a subprocess with a time limit.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from hvdtrain.doctor.check import STATUSES, Topic
from hvdtrain.doctor.examination import CHECKS, detect_rank, examine
from hvdtrain.doctor.subprocesses import STARTED
from hvdtrain.errors import UserError
from hvdtrain.system.command import Parser, exit_status
from hvdtrain.system.files import require_writable, write_outputs
from hvdtrain.system.processes import ending_started
from hvdtrain.system.text import format_ranks, to_json

BOLD, COLORS = "1", {"ok": "32", "warn": "33", "fail": "31"}
"""For terminals (ECMA-48, SGR)."""


@exit_status()
def main(argv: list[str]) -> None:
    """Examine, and print on rank 0; ends the process with 1 if a check failed, 2 for invalid options."""
    options = parser().parse_args(argv)
    if options.ranks < 1:
        parser().error(f"--ranks {options.ranks}: give 1 or more")
    sys.exit(_run(options))


def parser() -> Parser:
    listed = "\n".join(f"  {check.name:14} {check.about}{', in a job' * (check.where == 'job')}" for check in CHECKS)
    made = Parser(
        prog="python -m hvdtrain doctor",
        description="Find out what is wrong with the installation, this machine, or the job in which it is started.",
        epilog=f"checks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [check.name for check in CHECKS]
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    made.add_argument("--output", type=Path, metavar="FILE", help="also write the JSON object to FILE")
    made.add_argument("--only", nargs="+", default=[], choices=names, metavar="NAME", help="run only these checks")
    made.add_argument("--hosts", default="", metavar="A,B", help="also check these hosts, over ssh")
    made.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks planned on this host; default: 2")
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of runs; default: runs")
    return made


def _run(options: argparse.Namespace) -> int:
    """Examine, write and print the report; the exit status, which in a job is rank 0's."""
    rank = detect_rank().rank
    hosts = tuple(filter(None, (host.strip() for host in options.hosts.split(","))))
    if options.output and rank == 0:
        require_writable(options.output.parent, "--output")
        if options.output.is_dir():
            raise UserError(f"--output {options.output} is a folder", "give a file")
    with ending_started(STARTED):  # a launcher that hangs does not end its ranks
        report = examine(options.only, options.ranks, hosts, options.runs)
    if rank != 0:
        for finding in report["findings"]:
            if finding["check"] == "meeting" and finding["status"] == "fail":
                print(f"hvdtrain: rank {rank}: {finding['text']}", file=sys.stderr)
        return 0
    if options.output:
        content = {options.output.name: to_json(report, indent=1) + "\n"}
        write_outputs(options.output.parent, "--output", content)
    _show(report, options.json)
    return int(report["status"] == "fail")


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(to_json(report))
        return
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for color, text in _lines(report):
        print(f"\x1b[{color}m{text}\x1b[0m" if colored and color else text)


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    findings = report["findings"]
    for topic in get_args(Topic):
        of_topic = [finding for finding in findings if finding["topic"] == topic]
        if of_topic:
            yield BOLD, topic
        for finding in of_topic:
            ranks, hosts = format_ranks(finding["ranks"]), ", ".join(finding["hosts"])
            where = "" if finding["everywhere"] else f"rank {ranks} ({hosts}): "
            color = "" if finding["status"] == "ok" else COLORS[finding["status"]]
            yield color, f"  {finding['status']:4} {finding['check']}: {where}{finding['text']}"
            if finding["remedy"]:
                yield "", f"       -> {finding['remedy']}"
    counts = Counter(finding["status"] for finding in findings)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    yield COLORS[report["status"]], f"{report['status']}: {summary}; {report['seconds']:.0f} s"
