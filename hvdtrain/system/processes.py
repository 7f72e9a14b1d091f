"""Processes on Linux: how they end, which one it is among those of all hosts, and for how long it ran."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hvdtrain.system.rank_info import host_name

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
"""Signals that ask a job to stop after a checkpoint; a terminal that is closed sends SIGHUP."""
Result = TypeVar("Result")
# Loaded here: a child of a process with threads must take no lock before it executes its program.
LIBC = ctypes.CDLL(None)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, for whatever reason."""
    LIBC.prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Have the kernel make orphans among the descendants of this process its children, in place of those of init.

    So `descendants` finds all of them, in whatever sessions and process groups they are.
    """
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """The processes that this one has started, itself or through others, without those that have ended."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    below = children.get(os.getpid(), [])
    for pid in below:  # it grows meanwhile
        below += children.get(pid, [])
    return below


def end_descendants(variable: str = "", limit_s: float = 5.0) -> None:
    """Kill the descendants of this process, which has called `adopt_orphans`; nobody waits for their status.

    variable: only those that have this environment variable; of others that end, the status is kept. After limit_s,
    those are left that cannot be killed: they run as another user, or wait for a file server that does not respond.
    """
    deadline = time.monotonic() + limit_s
    while (variable or reap_orphans()) and time.monotonic() < deadline:
        left = [pid for pid in descendants() if not variable or _has_variable(pid, variable)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.01)


@contextlib.contextmanager
def ending_started(variable: str) -> Iterator[None]:
    """End what is started inside when this is left, also by SIGTERM or SIGHUP. Call it in the main thread.

    variable: the environment variable by which it is recognized.
    """
    adopt_orphans()
    os.environ[variable] = "1"
    default = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in default:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_IGN)
        end_descendants(variable)
        del os.environ[variable]
        for number in default:
            signal.signal(number, signal.SIG_DFL)


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it cannot be read."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or runs as another user
        return {}
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if entry)


def _has_variable(pid: int, name: str) -> bool:
    return name in environment_of(pid)


def mapped_files() -> set[str]:
    """The files that this process has mapped, such as its libraries; none where the kernel does not tell."""
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    except OSError:
        return set()
    return {path for line in lines for path in line.split(maxsplit=5)[5:]}


def reap_orphans(child: int = 0) -> bool:
    """Reap children of this process that have ended, but not `child`, whose status its Popen asks for.

    Returns whether this process has any child left.
    """
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return False
    return True


def in_background(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """What a function that may block returns or raises. Its thread does not keep this process from ending."""
    result: Future[Result] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function(*arguments))
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def start_remedy(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
        return "check that it is on PATH"
    return "check the limits of this user and its container (ulimit -a), or start fewer ranks"


def describe_status(status: int) -> str:
    """How a process ended, as the end of a sentence; status as Popen has it: less than 0 for a signal."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with exit status {status}"


def signal_name(number: int) -> str:
    """The name of a signal, as bash has it: Python has none for most of the real-time signals."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:  # the C library keeps some for itself
        return f"signal {number}"


def shell_status(status: int) -> int:
    """Popen's status as a shell reports it: 128 + N for signal N."""
    return 128 - status if status < 0 else status


def is_second_request(number: int, seconds: float) -> bool:
    """Whether a signal that was received that long after the first of its kind asks to end at once.

    Earlier it is the same request: Slurm, systemd and Kubernetes send several, and a terminal signals a whole group of
    processes, a rank and its launcher as well. SIGUSR1 only ever asks for a checkpoint.
    """
    return seconds > {int(signal.SIGTERM): 3.0, int(signal.SIGINT): 0.2}.get(number, float("inf"))


SHELL = re.compile(r".*/((ba|da|a|z|k|mk|c|tc|fi)?sh|busybox)")


def handles(pid: int, number: int) -> bool:
    """Whether a process catches a signal (proc(5), SigCgt); assumed where the kernel does not tell, as gVisor."""
    with contextlib.suppress(OSError):  # it has ended
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(errors="replace"), re.M)
        return not caught or bool(int(caught[1], 16) >> (number - 1) & 1)
    return False


def handling(number: int) -> list[int]:
    """The first descendant of this process that handles a signal; none if it would end all.

    A shell waits for its program, and hands nothing on: it counts only without another, and never for SIGINT.
    """
    programs = {pid: _program(pid) for pid in descendants() if handles(pid, number)}
    shells = [pid for pid, program in programs.items() if SHELL.fullmatch(program)]
    others = [pid for pid, program in programs.items() if program and pid not in shells]
    return others[:1] or ([] if number == signal.SIGINT else shells[:1])


def _program(pid: int) -> str:
    """Its executable; empty for one that has ended, and for a worker, which is a fork or multiprocessing has started.

    Workers of PyTorch's DataLoader handle SIGTERM, also where their program does not.
    """
    with contextlib.suppress(OSError):
        parent, line = parent_of(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
        is_worker = line == Path(f"/proc/{parent}/cmdline").read_bytes() or b"multiprocessing" in line
        return "" if is_worker and parent != os.getpid() else os.readlink(f"/proc/{pid}/exe")
    return ""


def end_at_crashes() -> None:
    """Let a crash end this process by its signal, after the stacks of all Python threads; call it in the main thread.

    Call it when libraries are loaded. MXNet's handler calls exit(), in which Horovod waits for the other ranks, and
    they for this one.
    """
    if threading.current_thread() is not threading.main_thread():  # Python sets handlers nowhere else
        return
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)  # faulthandler continues with the handler that was there before
    faulthandler.enable(2)  # standard error, which a program may have replaced
    # Libraries abort because of another rank, and have said so: stacks would hide it.
    signal.signal(signal.SIGABRT, signal.SIG_DFL)


@dataclass(frozen=True)
class ProcessIdentity:
    """One process among those of all hosts."""

    host: str
    place: str
    """Where `pid` counts: host, boot and PID namespace, as others have the same numbers; empty where it is unknown."""
    pid: int
    started: int
    """Clock ticks from the boot to the start of the process: the kernel uses a pid again."""

    @classmethod
    def current(cls) -> ProcessIdentity:
        return cls(host_name(), _place(), os.getpid(), _start_time(os.getpid()) or 0)

    def running(self) -> bool | None:
        """Whether the process runs, or is suspended; None where this process cannot know."""
        if not self.place or self.place != _place():
            return None
        return _start_time(self.pid) == self.started


def _place() -> str:
    """Empty where the kernel does not tell all of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Field `starttime` of proc(5); None for a process that has ended."""
    state, *fields = _status(pid)
    return None if state in "ZX" else int(fields[18])


def parent_of(pid: int) -> int:
    """The process that has started or adopted this one; 0 if that is in another namespace, or this has ended."""
    _, *fields = _status(pid)
    return int(fields[0]) if fields else 0


def _status(pid: int) -> list[str]:
    """The fields `state` and following of proc(5); only X, of a dead process, for one that has ended."""
    try:
        # The kernel cuts a program's name at 15 bytes, also within a character.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["X"]


TICK_S = 0.5
"""How often `RunningTime.tick` should be called."""
GIVE_UP_S = 0.1
SUSPENDED_S = 4 * TICK_S
"""A longer time between two ticks means that the process did not run."""


class RunningTime:
    """Seconds in which this process ran; `tick` counts them.

    The time for which it was suspended (SIGSTOP, `scontrol suspend`) does not count, except for its first SUSPENDED_S
    seconds, so that a machine which delays every tick cannot stop the clock.
    """

    def __init__(self) -> None:
        self.seconds, self._before = 0.0, time.monotonic()

    def tick(self) -> bool:
        """Count the time since the last call; whether the process was suspended in it."""
        now = time.monotonic()
        passed, self._before = now - self._before, now
        self.seconds += min(passed, SUSPENDED_S)
        return passed > SUSPENDED_S


class RunningLimit:
    """A time limit of an action that blocks, for which a thread counts the time in which this process ran.

    gives_up: asked every GIVE_UP_S seconds whether to end before. Use it in a `with` statement.
    """

    def __init__(self, seconds: float, gives_up: Callable[[], bool] | None = None) -> None:
        self._seconds, self._clock, self._ended = seconds, RunningTime(), threading.Event()
        self._gives_up = gives_up
        self._thread = threading.Thread(target=self._tick, name="limit", daemon=True)

    def __enter__(self) -> RunningLimit:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            self._clock.tick()

    @property
    def passed_s(self) -> float:
        """Seconds that have passed, up to one tick."""
        return self._clock.seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left, for timeouts: above 0, also when none are."""
        left_s = max(self._seconds - self._clock.seconds, 0.01)
        return min(left_s, GIVE_UP_S) if self._gives_up else left_s

    @property
    def is_over(self) -> bool:
        return self._clock.seconds >= self._seconds or bool(self._gives_up and self._gives_up())
