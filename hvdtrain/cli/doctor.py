"""python -m hvdtrain doctor: what is wrong with an installation, a machine or a job, and what mends it.

Alone it looks at this machine and starts two processes; started by a launcher it looks from every rank, and rank 0
tells. It imports no framework: whatever may crash or hang runs in a process of its own, for a limited time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.doctor import job
from hvdtrain.doctor.checks import allreduce, gpu, horovod, machine, mpi, network, software, variables  # noqa: F401  (they fill the list of checks)
from hvdtrain.doctor.examination import BUDGET_S, row
from hvdtrain.doctor.findings import CHECKS, STATUSES, Setting, examine
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.system import rank_info

TOPICS = ("software", "jobs", "job", "machine", "network", "gpu")
TOGETHER = {"meeting": "the ranks reach each other", **job.TOGETHER}
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Options(NamedTuple):
    json: bool
    output: Path | None
    only: tuple[str, ...]
    hosts: tuple[str, ...]
    ranks: int
    runs: Path


def main(argv: list[str]) -> None:
    """Look, and tell on rank 0; ends the process with 1 where something failed, 2 for wrong options."""
    try:
        status = run(parse(argv))
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        status = error.exit_status
    sys.stdout.flush()
    sys.exit(status)


def parse(argv: list[str]) -> Options:
    """Options; ends the process with 2 where they are wrong."""
    names = [one.name for one in CHECKS] + list(TOGETHER)
    listed = "\n".join(
        [f"  {one.name:14} {one.about}" for one in CHECKS]
        + [f"  {name:14} {about}, in a job" for name, about in TOGETHER.items()]
    )
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain doctor",
        description="Look what is wrong with the installation, this machine, or the job that it is started in.",
        epilog=f"checks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON object there as well")
    parser.add_argument("--only", nargs="+", default=(), choices=names, metavar="NAME", help="only these checks")
    parser.add_argument("--hosts", default="", metavar="A,B", help="hosts to reach by ssh")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks planned on this host; default: 2")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of runs; default: runs")
    given = parser.parse_args(argv)
    if given.ranks < 1:
        parser.error(f"--ranks {given.ranks}: give 1 or more")
    hosts = tuple(filter(None, (host.strip() for host in given.hosts.split(","))))
    return Options(given.json, given.output, tuple(given.only), hosts, given.ranks, given.runs)


def run(options: Options) -> int:
    """The exit status: 1 where something failed."""
    began = time.monotonic()
    try:
        place = rank_info.detect()
    except UserError:  # told by the check `variables`
        place = rank_info.RankInfo("none", 0, 1, 0)
    setting = Setting(place, options.ranks, began + BUDGET_S, options.hosts, options.runs)
    reports = _in_job(setting, options) if setting.in_job else [_report(setting, _look(setting, options))]
    if place.rank != 0:
        return 0  # rank 0 tells, and its status is the job's
    findings = job.merge(reports)
    worst = max((one["status"] for one in findings), key=STATUSES.index, default="ok")
    whole = {
        "status": worst,
        "launcher": place.launcher,
        "ranks": place.size,
        "hosts": list(dict.fromkeys(report["host"] for report in reports)),
        "seconds": round(time.monotonic() - began, 1),
        "findings": findings,
    }
    if options.output:
        write(options.output, whole)
    show(whole, options.json)
    return int(worst == "fail")


def _wanted(options: Options, name: str) -> bool:
    return not options.only or name in options.only


def _look(setting: Setting, options: Options) -> list[dict[str, Any]]:
    """The findings of the checks that this rank makes by itself."""
    wheres = (
        {"rank"} | ({"host"} if setting.place.local_rank == 0 else set()) | (set() if setting.in_job else {"alone"})
    )
    found = []
    for one in CHECKS:
        if one.where in wheres and _wanted(options, one.name):
            found += [row(one.name, one.topic, finding) for finding in examine(one, setting)]
    return found


def _report(setting: Setting, findings: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rank": setting.place.rank, "host": setting.host, "findings": findings}


def _in_job(setting: Setting, options: Options) -> list[dict[str, Any]]:
    """Reports of all ranks, or of this one alone where they cannot meet."""
    met = job.Job(setting, timeout_s=BUDGET_S + 60)
    try:
        setting.ranks = met.local_ranks
        if not met.ring and setting.place.rank:
            print(f"hvdtrain: rank {setting.place.rank}: {met.findings[-1].text}", file=sys.stderr)
        mine = [row("meeting", "job", finding) for finding in met.findings if setting.place.rank == 0]
        mine += _look(setting, options)
        if met.ring:
            found = met.together(lambda name: _wanted(options, name))
            if setting.place.rank == 0:
                mine += [row(name, "job", finding) for name, finding in found]
        report = _report(setting, mine)
        if met.ring:
            try:
                return list(met.ring.gather(report))
            except HvdtrainError as error:
                report["findings"].append(row("meeting", "job", job.apart(error)))
        return [report]
    finally:
        met.close()


def write(path: Path, whole: dict[str, Any]) -> None:
    """Write the JSON object, so that a reader sees all of it or nothing."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(whole, indent=1) + "\n")
        unfinished.replace(path)
    except OSError as error:
        raise UserError(f"--output {path} cannot be written ({error.strerror}); give another file") from None


def show(whole: dict[str, Any], as_json: bool) -> None:
    """Print the findings, by topic."""
    if as_json:
        print(json.dumps(whole))
        return
    lines = list(_lines(whole))
    console = _console()
    for style, text in lines:
        if console:
            console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)
        else:
            encoding = sys.stdout.encoding or "utf-8"
            print(text.encode(encoding, "replace").decode(encoding))


def _console() -> Any:
    """rich's console on a terminal; None elsewhere, and where rich is what is missing."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _lines(whole: dict[str, Any]) -> Any:
    """Styles and lines of the text."""
    findings = whole["findings"]
    for topic in TOPICS:
        rows = [one for one in findings if one["topic"] == topic]
        if rows:
            yield "bold", topic
        for one in rows:
            where = "" if one["everywhere"] else f"rank {job.spans(one['ranks'])} ({', '.join(one['hosts'])}): "
            yield (
                COLOURS[one["status"]] if one["status"] != "ok" else "",
                (f"  {one['status']:4} {one['check']}: {where}{one['text']}"),
            )
            if one["remedy"]:
                yield "", f"       -> {one['remedy']}"
    counts = {status: sum(one["status"] == status for one in findings) for status in STATUSES}
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    yield COLOURS[whole["status"]], f"{whole['status']}: {summary}; {whole['seconds']:.0f} s"
