"""python -m hvdtrain launch {status,cancel}: the jobs that were submitted to Slurm."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence

from hvdtrain.errors import UserError
from hvdtrain.jobs.slurm import overview, queue, submissions
from hvdtrain.jobs.slurm.overview import JobOverview
from hvdtrain.jobs.slurm.queue import Cancellation, NamedJob, QueuedJob
from hvdtrain.jobs.slurm.submissions import Submission
from hvdtrain.system.text import printable, to_json

JOB = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10}))?")
RECENT = 10
"""Jobs that have ended, of which `status` without a number shows the last ones."""
MAX_WIDTH = 160
"""Columns of the table where the output is not a terminal."""
COLORS = {"RUNNING": "green", "COMPLETED": "", "PENDING": "yellow", overview.FORGOTTEN: "", "CANCELLED": ""}


class _Jobs:
    """Submitted jobs, and what Slurm knows about them. Raises UserError where Slurm is missing."""

    def __init__(self) -> None:
        queue.require()
        try:
            self.submitted, damaged = submissions.read()
        except OSError as error:
            reason = f"{submissions.path()} cannot be read ({error.strerror})"
            raise UserError(reason, "correct its permissions, or remove it") from None
        if damaged:
            _print(f"{damaged} damaged line(s) of {submissions.path()} are left out")

    def named(self, texts: Sequence[str]) -> list[NamedJob]:
        """Raises UserError for what is not the number of a job."""
        jobs = []
        for text in dict.fromkeys(texts):
            match = JOB.fullmatch(text)
            if not match:
                reason = f"{text!r:.80} is not the number of a job"
                raise UserError(reason, "give a number such as 123, or 123_4 of an array")
            made = [submission for submission in self.submitted if submission.job == match[1]]
            jobs.append(NamedJob(match[1], match[2] or "", made[-1] if made else None))
        return jobs

    def known(self, asked: Sequence[NamedJob]) -> list[QueuedJob]:
        """What Slurm knows about jobs that are named. Raises UserError for unknown ones, and for those of others."""
        entries_known = queue.find(asked)
        for job in asked:
            entries = job.entries(entries_known)
            if not entries and not (job.submission and (not job.task or job.submission.has_task(job.task))):
                remedy = "launch status --all lists those that were submitted"
                raise UserError(f"job {job.id}: neither Slurm nor the launcher knows it", remedy)
            for entry in entries:
                if entry.user not in (queue.current_user(), str(os.getuid())):
                    reason = f"job {entry.id} is of the user {printable(entry.user)}"
                    raise UserError(reason, "give one of your own; squeue shows those of all users")
        return entries_known


def status(options: argparse.Namespace) -> int:
    """Show jobs; the exit status."""
    jobs = _Jobs()
    asked = jobs.named(options.jobs)
    if asked:
        known = jobs.known(asked)
    else:
        asked = [NamedJob(job.job, "", job) for job in jobs.submitted]
        by_cluster = _of_reachable_clusters(jobs.submitted)
        known = [job for entries in by_cluster.values() for job in entries]
        asked = asked if options.all else _recent(asked, known)
        known += _ended(asked, known, list(by_cluster))
    rows = [row for job in asked for row in _rows(job, known, options.tasks)]
    if options.json:
        print(to_json([row.record() for row in rows], indent=1))
    elif rows:
        _show(rows)
    else:
        print("no job was submitted with launch sbatch --submit")
    return 0


def _recent(asked: list[NamedJob], known: list[QueuedJob]) -> list[NamedJob]:
    """Those that wait or run, and the last ones of the others."""
    active = [any(entry.active for entry in job.entries(known)) for job in asked]
    last = [number for number, is_active in enumerate(active) if not is_active][-RECENT:]
    return [job for number, job in enumerate(asked) if active[number] or number in last]


def _of_reachable_clusters(submitted: list[Submission]) -> dict[str, list[QueuedJob]]:
    """What each cluster has in its queue; one that does not answer is left out with a message."""
    by_cluster = {}
    for cluster in sorted({job.cluster for job in submitted}):
        try:
            by_cluster[cluster] = queue.find_recent([job.job for job in submitted if job.cluster == cluster], cluster)
        except UserError as error:
            if not cluster:
                raise
            _print(f"cluster {printable(cluster)}: {error.reason}")
    return by_cluster


def _ended(asked: list[NamedJob], known: list[QueuedJob], clusters: list[str]) -> list[QueuedJob]:
    """What the accounts of these clusters say about jobs that are not in the queue any more."""
    in_queue, entries = {(job.cluster, job.job) for job in known}, []
    submitted = [job.submission for job in asked if job.submission]
    for cluster in clusters:
        gone = [job.job for job in submitted if job.cluster == cluster and (cluster, job.job) not in in_queue]
        try:
            entries += queue.find_ended(gone, cluster)
        except UserError as error:  # what is in the queue is shown all the same
            _print(error.reason)
    return entries


def _rows(asked: NamedJob, known: list[QueuedJob], each_task: bool) -> list[JobOverview]:
    entries = asked.entries(known)
    if each_task and entries:
        entries.sort(key=lambda entry: int(entry.task or 0))
        return [overview.of_entry(entry, asked.submission) for entry in entries]
    return [overview.of_job(asked, known)]


def _show(rows: list[JobOverview]) -> None:
    """A table, for a terminal of any width: a narrow one leaves out the nodes."""
    from rich.text import Text

    from hvdtrain.views.table import Column, Section, Table

    def wrapped(heading: str, least: int, priority: int = 0) -> Column:
        return Column(heading, priority, left=True, least=least, overflow="wrap")

    columns = [Column("job", left=True), wrapped("name", 16), wrapped("state", 24), Column("time", left=True)]
    columns += [wrapped("nodes", 8, priority=1), wrapped("run", 24)]
    cells: list[list[str | Text]] = []
    for row in rows:
        state = Text(printable(_state(row)), COLORS.get(row.state, "red"))
        nodes = printable(row.hosts) or str(row.nodes or "")
        cells.append([row.id, printable(row.name), state, row.elapsed, nodes, printable(_progress(row))])
    is_terminal = sys.stdout.isatty()
    print(Table(columns, [Section(cells)], ruled=is_terminal).terminal(None if is_terminal else MAX_WIDTH))


def _state(row: JobOverview) -> str:
    """Such as `pending: it waits for nodes to become free`, or `2 running, 1 pending`."""
    if row.tasks:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in row.tasks.items())
        return f"{counts}: {row.why}" if row.why else counts
    why = f"{row.state.lower()}: {row.why}" if row.why else row.state.lower()
    return f"{why}; expected to start {row.start.replace('T', ' ')}" if row.state == "PENDING" and row.start else why


def _progress(row: JobOverview) -> str:
    if row.results is not None:
        return f"{_short(row)}: {row.results} trial(s) complete"
    if row.run:
        return _short(row) + ("" if row.step is None else f", step {row.step}")
    command = shlex.join(row.submission.command) if row.submission else ""
    return command if len(command) < 60 else f"{command[:57]}..."


def _short(row: JobOverview) -> str:
    """The run's folder, relative to this one where it is below."""
    path = os.path.relpath(str(row.run)) if row.run else ""
    return str(row.run) if path.startswith("..") else path


def cancel(options: argparse.Namespace) -> int:
    """End jobs; the exit status."""
    if bool(options.jobs) == options.all:
        raise UserError("launch cancel: which jobs?", "give their numbers, or --all")
    jobs = _Jobs()
    if options.all:
        asked = [NamedJob(job.job, "", job) for job in jobs.submitted]
        known = queue.find(asked, ended=False)  # the accounts, which take long, name none to end
        asked = [job for job in asked if any(entry.active for entry in job.entries(known))]
        if not asked:
            print("no submitted job waits or runs")
            return 0
        if not options.yes:
            _confirm(asked)
    else:
        asked = jobs.named(options.jobs)
        jobs.known(asked)
    wanted = [Cancellation(job.job, job.task, job.submission) for job in asked]
    queue.cancel(wanted, lambda text: print(printable(text), flush=True), at_once=options.now)
    return int(any(job.failed for job in wanted))


def _confirm(asked: list[NamedJob]) -> None:
    """Raises UserError unless the user wants to end these jobs."""
    for job in asked:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.submission.submitted)) if job.submission else ""
        name = job.submission.name if job.submission else ""
        print(f"{job.job}  {printable(name)}  submitted {when}", flush=True)
    if not sys.stdin or not sys.stdin.isatty():
        raise UserError("launch cancel --all asks before it ends jobs, and there is no terminal", "give --yes as well")
    if input(f"End {len(asked)} job(s)? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError("nothing was ended", "give --yes, or answer y")


def _print(message: str) -> None:
    print(f"hvdtrain: {printable(message)}", file=sys.stderr, flush=True)
