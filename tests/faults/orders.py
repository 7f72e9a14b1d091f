"""Random orders of events in jobs that survive lost ranks: python -m faults.orders [--seconds S] [--seed N] [--jobs N]

Needs tests/ on PYTHONPATH. A job is drawn from its seed alone: its ranks, what they do (`support/member.py`), and the
events: ranks, agents and the launcher are killed, ranks are stopped and continued, hosts leave the list for a moment or
for good, the job is asked to stop. Launcher, agents and ranks are forked from this process, so that a job takes a tenth
of a second of a core, and what they wait for is shortened. Each job has to end in time, with a status and a message
that fit to what has happened, and to leave nothing behind. One that does not is printed with its events: `--seed N
--jobs 1` repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil
from support import forks, member

from hvdtrain.errors import Stopped
from hvdtrain.jobs import agent, host_changes, job_end, job_processes, memberships, run
from hvdtrain.jobs.event_loop import Signals
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job
from hvdtrain.system import processes
from hvdtrain.system.processes import adopt_orphans

STOP_S, START_S, MISSING_S = 5.0, 6.0, 1.0
BOUND_S = 60.0
"""No job takes longer: several hangs that are noticed one after the other, and a request to stop."""
SUSPENDED_S = 15.0
"""So long a job is suspended of which all ranks are stopped."""
LEFT_S = START_S + 3.0
"""So long there may be an agent that looks for its launcher, which is killed."""
PROGRAM = "member"
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGUSR1": signal.SIGUSR1}
KILLS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "agent": signal.SIGKILL}
OTHERS = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "segv": signal.SIGSEGV}
ENDS = {"leave": member.DEFECT, "fail": member.DEFECT, "refuse": member.DEFECT}
LISTS = {"empty": "", "garbage": "\x00\x01 slots = = \n" * 50, "others": "elsewhere slots=4\n", "none": None}
"""What a list of hosts has while it is written."""


class Event(NamedTuple):
    """Something that happens, so many seconds after ranks have noted something for the n-th time, or the start."""

    after: str
    times: int
    delay_s: float
    what: str
    rank: int = 0


@dataclass
class Plan:
    """A job, and what happens to it."""

    seed: int
    ranks: list[dict[str, Any]]
    size: int
    steps: int = 0
    step_s: float = 0.0
    is_program: bool = False
    """Whether its program is none that trains."""
    min_ranks: int = 1
    max_ranks: int = 0
    has_list: bool = False
    """Whether its hosts are in a file."""
    steps_of: list[tuple[int, int, str]] = field(default_factory=list)
    """What a rank does before a step."""
    events: list[Event] = field(default_factory=list)


def draw(seed: int) -> Plan:
    """A job of this seed."""
    it = random.Random(seed)
    size = it.choice((1, 2, 2, 3, 3, 4, 5))
    max_ranks = size + it.choice((0, 0, 1)) if size < 5 else 0
    plan = Plan(seed, [_rank(it) for _ in range(max(size, max_ranks))], size)
    plan.is_program, plan.has_list = it.random() < 0.15, it.random() < 0.3
    plan.steps, plan.step_s = it.randint(2, 30), it.choice((0.0, 0.01, 0.03))
    plan.min_ranks, plan.max_ranks = it.randint(1, size) if it.random() < 0.2 else 1, max_ranks
    kinds = {"kill": 5, "segv": 1, "agent": 2, "launcher": 1, "stop": 2, "continue": 1, "ask": 2}
    kinds["list"] = 3 * plan.has_list
    for _ in range(it.choice((1, 2, 2, 3, 3, 4, 5, 8))):
        what = it.choices([*kinds], [*kinds.values()])[0]
        what = it.choice([*SIGNALS]) if what == "ask" else it.choice([*LISTS, "fewer"]) if what == "list" else what
        if what == "stop" and it.random() < 0.5:
            plan.steps_of.append((it.randrange(size), it.randrange(plan.steps), it.choice(("stuck", "evaluate"))))
            continue
        after = it.choices(("begin", "start", "ready", "trains", "step", "finished", "end"), (2, 2, 3, 4, 8, 3, 3))[0]
        times = it.randint(1, size * (plan.steps if after == "step" else 1))
        plan.events.append(
            Event(after, times, it.choice((0.0, it.uniform(0, 0.05), it.uniform(0, 0.6))), what, it.randrange(size))
        )
    for what in ENDS:
        if it.random() < 0.06:
            plan.steps_of.append((it.randrange(size), it.randrange(plan.steps), what))
    return plan


def _rank(it: random.Random) -> dict[str, Any]:
    post_s = it.choice((0.0, 0.0, 0.0, it.uniform(0, 0.3), it.uniform(0, 3), it.uniform(0, 8)))
    status = it.choice((0,) * 12 + (1, 3, Stopped.exit_status))
    return {"start_s": it.choice((0.0, it.uniform(0, 0.1), it.uniform(0, 0.5))), "post_s": post_s, "status": status}


# The processes.


def hurry() -> None:
    """Have the launcher wait less."""
    member.hurry()
    processes._has_variable = lambda *_: True  # which /proc does not show of forked processes
    job_end.STOP_S, job_end.FIRST_CAUSE_S = STOP_S, 0.3
    agent.GRACE_S = job_end.GRACE_S = job_processes.GRACE_S = 0.5
    job_processes.RETIRE_S, job_processes.LEAVE_S = 1.0, 0.3
    memberships.FIRST_PAUSE_S, memberships.LONGEST_PAUSE_S, memberships.QUICK_S = 0.1, 0.5, 2.0
    host_changes.INTERVAL_S, host_changes.MISSING_S = 0.05, MISSING_S


def _become(function: Any, environment: dict[str, str], kept: tuple[int, ...] = ()) -> Any:
    """What a process calls that was forked to execute a program: it goes on with a function instead."""

    def begin() -> int:
        signal.set_wakeup_fd(-1)
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        asyncio._set_running_loop(None)
        os.environ.clear()
        os.environ.update(environment)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        return function()

    return lambda: forks.end_with(begin, 70)


def fork_instead(folder: Path, plan: Plan) -> None:
    """Have the launcher fork its agents, and these their programs."""
    execute, popen = asyncio.create_subprocess_exec, subprocess.Popen

    async def start_agent(*command: str, **options: Any) -> Any:
        arguments = (
            list(command[command.index("hvdtrain.jobs.agent") + 1 :]) if "hvdtrain.jobs.agent" in command else []
        )
        if not arguments:  # ssh to a host that is not there
            return await execute("false", **options)
        options["preexec_fn"] = _become(lambda: agent.main(arguments), {**options["env"]})
        return await execute("true", **options)

    def start_program(command: list[str], env: Any = None, **options: Any) -> Any:
        if command[0] != PROGRAM:
            return popen(command, env=env, **options)

        def be_member() -> NoReturn:
            own_group()
            member.Member(folder, asdict(plan)).run()

        own_group = options.pop("preexec_fn")
        options["preexec_fn"] = _become(be_member, {**env}, options["pass_fds"])
        return popen(["true"], env=env, **options)

    asyncio.create_subprocess_exec = start_agent  # type: ignore[assignment]
    agent.subprocess = type("subprocess", (), {**vars(subprocess), "Popen": staticmethod(start_program)})


class ReadySignals(Signals):
    """Signals that wait for whom they are for."""

    def __init__(self) -> None:
        super().__init__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS.values())


def launch(folder: Path, plan: Plan) -> int:
    """In a process of its own: run the job, and write how it ended."""
    os.setsid()
    run.Signals = ReadySignals
    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    fork_instead(folder, plan)
    hosts, hostfile = (), None
    if plan.has_list:
        hosts, hostfile = (Host("localhost", plan.max_ranks or plan.size),), folder / "hosts"
    launcher = "horovodrun" if hosts else "local"
    settings = {"launcher": launcher, "min_ranks": plan.min_ranks, "cores": 64, "start_timeout_s": START_S}
    job = Job((PROGRAM,), plan.size, hosts, survives=True, hostfile=hostfile, grows_to=plan.max_ranks, **settings)
    end = run.run(job)
    Path("result").write_text(json.dumps(end.record()))
    return end.exit_status


class RunningJob:
    """A job, and the events that happen to it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan, self.notes, self.done = folder, plan, [], []
        folder.mkdir()
        self._list(self._listed)
        self._offset, self._open, self._due = 0, list(plan.events), []
        self.began, self.status = time.monotonic(), -1
        self.is_late = False
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS.values())
        self.pid = os.fork()
        if not self.pid:
            forks.end_with(lambda: launch(folder, plan), 70)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS.values())
        self._arm("begin", 1)

    @property
    def _listed(self) -> str:
        return f"localhost slots={self.plan.max_ranks or self.plan.size}\n"

    def _list(self, text: str | None) -> None:
        path = self.folder / "hosts"
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(text)

    def _arm(self, what: str, count: int) -> None:
        now = time.monotonic()
        for event in [one for one in self._open if (one.after, one.times) == (what, count)]:
            self._open.remove(event)
            self._due.append((now + event.delay_s, event))

    def look(self) -> bool:
        """Let happen what is due; whether the job still runs."""
        self._read()
        now = time.monotonic()
        for at, event in [one for one in self._due if one[0] <= now]:
            self._due.remove((at, event))
            self._do(event, now)
        if now - self.began > SUSPENDED_S:
            self._resume()
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self.status = os.waitstatus_to_exitcode(status)
            self.ended = now
            self._read()
        elif now - self.began > BOUND_S:
            self.is_late = True
            self.states = {pid: state(pid) for pid in [self.pid, *descendants(self.pid)]}
            for pid in [*descendants(self.pid), self.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.ended = now
            return False
        return not ended

    def _resume(self) -> None:
        """A job of which all ranks are stopped is suspended, for as long as one likes."""
        left = {note["pid"] for note in self.notes} & set(descendants(self.pid))
        if all(state(pid) == psutil.STATUS_STOPPED for pid in left):
            for pid in left:
                os.kill(pid, signal.SIGCONT)

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.folder / "log", "rb") as file:
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                self.notes.append(json.loads(line))
                what = self.notes[-1]["what"]
                self._arm(what, sum(note["what"] == what for note in self.notes))

    def current(self, rank: int) -> int:
        """The process of a rank that has not noted its end."""
        pid = next((note["pid"] for note in reversed(self.notes) if note["rank"] == rank), 0)
        return 0 if any(note["pid"] == pid and note["what"] == "end" for note in self.notes) else pid

    def _do(self, event: Event, now: float) -> None:
        what, pid = event.what, self.current(event.rank)
        if what in SIGNALS or what == "launcher":
            os.kill(self.pid, SIGNALS.get(what, signal.SIGKILL))
        elif what in LISTS:
            self._list(LISTS[what])
            self._due.append((now + 0.2, event._replace(what="again")))
        elif what == "again":
            self._list(self._listed)
        elif what == "fewer":
            self._list(f"localhost slots={max(self.plan.size - 1, 1)}\n")
        else:
            if what == "agent" and pid:
                pid = next(iter(ancestors(pid)), 0)
            if not pid or self.pid not in ancestors(pid):
                return
            number = OTHERS.get(what, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        done = {"t": time.monotonic() - self.began, "what": what, "rank": event.rank, "pid": pid}
        self.done.append({**done, "program": self.current(event.rank)})


def state(pid: int) -> str:
    """As psutil calls it; of a process that is gone, that of a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status()
    return psutil.STATUS_ZOMBIE


def ancestors(pid: int) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process.pid for process in psutil.Process(pid).parents()]
    return []


def descendants(pid: int, is_deep: bool = True) -> list[int]:
    """Of a process, without zombies; those that it has not started itself only if is_deep."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = [process.pid for process in psutil.Process(pid).children(is_deep)]
        return [one for one in below if state(one) != psutil.STATUS_ZOMBIE]
    return []


# What is expected.


class Process(NamedTuple):
    """A process of a rank, as it noted what happened to it."""

    rank: int
    pid: int
    notes: dict[str, float]
    """When something was noted first."""
    status: int | None
    """How it ended by itself; None where it was killed."""
    killed: float | None
    """When this program killed it or its agent."""

    @property
    def failed(self) -> bool:
        return self.killed is not None or self.status not in (None, 0)

    @property
    def finished(self) -> float | None:
        """When it had completed its training, unless it was killed before; of other programs, when it ended well."""
        at = self.notes.get("finished", self.notes["end"] if self.status == 0 else None)
        return None if at is None or (self.killed is not None and self.killed < at) else at


class Expected:
    """What may come out of a job, by what has happened to it."""

    def __init__(self, job: RunningJob) -> None:
        kills = {}
        for event in job.done:
            if event["what"] in KILLS:
                kills[event["program"]] = kills[event["pid"]] = event["t"] + job.began
        self._made = []
        for pid in dict.fromkeys(note["pid"] for note in job.notes):
            notes = [note for note in job.notes if note["pid"] == pid]
            first = {note["what"]: note["t"] for note in reversed(notes)}
            status = next((note["status"] for note in notes if note["what"] == "end"), None)
            self._made.append(Process(notes[0]["rank"], pid, first, status, kills.get(pid)))
        self._plan, self._status = job.plan, job.status
        happened = Counter(event["what"] for event in job.done)
        self._asked = {number for name, number in SIGNALS.items() if happened[name]}
        moments = [event["t"] for event in job.done if event["what"] in LISTS or event["what"] == "again"]
        is_long = any(after - before > MISSING_S / 2 for before, after in itertools.pairwise(moments))
        self._loses_slots = bool(happened["fewer"]) or is_long
        """Whether slots may have been missing for long."""
        self._hangs = bool(happened["stop"]) or any(what == "stuck" for *_, what in job.plan.steps_of)
        self._kills = {128 + KILLS[what] for what in KILLS if happened[what]}
        is_stopped = self._asked or any(one.status == Stopped.exit_status for one in self._made)
        self._is_slow = bool(is_stopped and max(rank["post_s"] for rank in job.plan.ranks) > STOP_S - 1)
        """Whether a rank may work for longer than it may after a request to stop, or where another one has stopped."""

    def problems(self, end: dict[str, Any], output: str) -> Iterator[str]:
        """What is wrong with an end: the record of it, and what the launcher printed."""
        if end["exit_status"] != self._status:
            yield f"it exited with {self._status}, and says {end['exit_status']}"
        if "Traceback" in output:
            yield "a traceback"
        for number in re.findall(r"^hvdtrain: rank (\d+) .*; it is started again", output, re.M):
            starts = sum(one.rank == int(number) for one in self._made)
            if starts < 2 and not self._asked and not self._status and not self._loses_slots:
                yield f"rank {number} was not started again, as it says"
        if not self._status:
            yield from self._problems_of_a_good_end()
            return
        if self._status not in self._statuses():
            yield f"status {self._status}, where only {sorted(self._statuses())} may be"
        if self._status != Stopped.exit_status and not re.search(r"^hvdtrain: (?!.* continues?$)", output, re.M):
            yield "no message"
        failed = {one.rank for one in self._made if one.failed}
        is_sure = not (self._asked or self._hangs or self._loses_slots or self._is_slow)
        if is_sure and end["rank"] is not None and end["rank"] not in failed:
            yield f"it blames rank {end['rank']}, and ranks {sorted(failed)} failed"
        if is_sure and self._status != Stopped.exit_status and not failed:
            yield "no rank failed"
        if is_sure and not self._plan.is_program and not any(one.finished for one in self._made):
            yield from self._problems_of_a_bad_end()

    def _problems_of_a_good_end(self) -> Iterator[str]:
        finished = [one for one in self._made if one.finished]
        if not finished:
            yield "it ended well, and no rank did"
        for one in finished:
            if one.status != 0 or (one.killed and one.killed < one.notes["end"]):
                yield f"it ended well, but not rank {one.rank} (process {one.pid}) after its training"
        if self._plan.is_program and {one.rank for one in finished} < set(range(self._plan.size)):
            yield "it ended well, and not all of its ranks did"

    def _problems_of_a_bad_end(self) -> Iterator[str]:
        """Before any rank had completed the training, and nobody asked for it: others could have gone on."""
        failures = Counter(one.status for one in self._made if one.status)
        is_decided = any(what == "refuse" for *_, what in self._plan.steps_of) or failures[Stopped.exit_status]
        # The launcher kills those that neither note their end nor are killed by this program.
        ended = [one.rank for one in self._made if "trains" in one.notes and one.status is None and not one.killed]
        if len(ended) >= self._plan.min_ranks and not is_decided and max(failures.values(), default=0) < 2:
            yield f"it failed, and ranks {ended} could have gone on"

    def _statuses(self) -> set[int]:
        """Those other than 0 that may be."""
        statuses = {128 + number for number in self._asked} | {one.status for one in self._made if one.status}
        if signal.SIGUSR1 in self._asked:
            statuses.add(Stopped.exit_status)
        if self._kills or self._hangs or self._is_slow:
            statuses |= {1, 128 + signal.SIGKILL, *self._kills}
        if self._loses_slots:
            statuses |= {1, 2}
        if any(one.status for one in self._made):  # others waited for a rank that ended before training began
            statuses.add(1)
        return statuses


def problems(job: RunningJob) -> list[str]:
    """What is wrong with how a job ended."""
    if job.is_late:
        return [f"it did not end within {BOUND_S:g} s: {job.states}"]
    if job.status == -signal.SIGKILL and any(event["what"] == "launcher" for event in job.done):
        return []  # nothing may be left, as always
    try:
        end = json.loads((job.folder / "result").read_text())
    except FileNotFoundError:
        return [f"the launcher ended with {job.status} and no result"]
    return [*Expected(job).problems(end, (job.folder / "output").read_text())]


# All jobs.


class Jobs:
    """Runs jobs, several at the same time."""

    def __init__(self, at_once: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hvdtrain-orders-"))
        self._at_once, self._running = at_once, []
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def run(self, seeds: Any, until: float) -> None:
        """Run jobs of these seeds, which begin until then."""
        seeds = iter(seeds)
        more = True
        while more or self._running:
            while more and len(self._running) < self._at_once:
                seed = next(seeds, None) if time.monotonic() < until and len(self.failed) < 5 else None
                more = seed is not None
                if more:
                    self._running.append(RunningJob(self.folder / str(seed), draw(seed)))
            for job in self._running[:]:
                if not job.look():
                    self._running.remove(job)
                    self._end(job)
            time.sleep(0.004)

    def _end(self, job: RunningJob) -> None:
        wrong, own = problems(job), {one.pid for one in self._running}
        deadline = time.monotonic() + LEFT_S
        while (left := [] if job.is_late else self._left(own)) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left:
            wrong.append(f"it left processes: { {pid: state(pid) for pid in left} }")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _reap(own)
        known = {"log", "output", "result", "hosts", "checkpoint", "heartbeats", "end.json"}
        names = {path.name for path in job.folder.iterdir()} - known
        if strange := [name for name in names if not name.startswith("done-")]:
            wrong.append(f"it left {strange}")
        self.counts["jobs"] += 1
        self.counts[f"status {job.status}"] += 1
        self.counts["events"] += len(job.done)
        if wrong:
            self.failed.append(describe(job, wrong))
            print(self.failed[-1], flush=True)
        shutil.rmtree(job.folder)

    @staticmethod
    def _left(own: set[int]) -> list[int]:
        """Processes of jobs that have ended."""
        return [pid for pid in descendants(os.getpid(), is_deep=False) if pid not in own]


def _reap(own: set[int]) -> None:
    """Of the orphans that have come to this process, as of killed agents."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)


def describe(job: RunningJob, wrong: list[str]) -> str:
    """A job that ended wrongly, in full."""
    notes = [note for note in job.notes if note["what"] != "step"]
    lines = [
        f"  {note['t'] - job.began:7.3f} rank {note['rank']} ({note['pid']}) {note['what']} "
        f"{ {k: v for k, v in note.items() if k not in ('t', 'rank', 'pid', 'what')} or '' }"
        for note in notes
    ]
    lines += [f"  {event['t']:7.3f} EVENT {event['what']}: rank {event['rank']} ({event['pid']})" for event in job.done]
    lines.sort(key=lambda line: float(line.split()[0]))
    output = (job.folder / "output").read_text(errors="replace") if (job.folder / "output").exists() else ""
    what = "\n".join(f"seed {job.plan.seed}: {text}" for text in wrong)
    return "\n".join(
        [what, f"  {job.plan}", *lines, f"  {job.ended - job.began:7.3f} ended: {job.status}", output[-4000:]]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="begin no job after this time (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the first job (0)")
    parser.add_argument("--jobs", type=int, default=1 << 30, help="make so many jobs")
    parser.add_argument("--at-once", type=int, default=6, help="jobs at the same time (6)")
    options = parser.parse_args()
    hurry()
    adopt_orphans()
    gc.freeze()
    jobs = Jobs(options.at_once)
    jobs.run(range(options.seed, options.seed + options.jobs), time.monotonic() + options.seconds)
    shutil.rmtree(jobs.folder)
    print(", ".join(f"{count} {name}" for name, count in sorted(jobs.counts.items())))
    if jobs.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
