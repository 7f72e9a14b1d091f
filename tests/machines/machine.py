"""What all machines share: a machine that is made, and removed, and runs commands; and the folders of a run of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from machines.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 4 * 3600
"""For one command, so that none hangs the others."""
MAKES = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS", "PYTHONPATH", "VENV", "HVDTRAIN_DATA"}
"""Variables of the make that started this program."""


class Command(NamedTuple):
    line: str
    title: str = ""
    """In the head of a table, in place of the line."""
    offline: bool = False
    """Whether it runs without a network, in an image."""


Run = Callable[[Command, IO[str]], int]
"""Runs a command in the checkout of a machine, writes what it says into a file, and returns its exit status."""


@dataclass
class Work:
    """The folders of a run: machines lie below `folder`, what commands say below `logs`."""

    folder: Path
    logs: Path
    cache: Path | None = None
    """Keeps what machines download and build for the next run; without it, each machine begins with nothing."""
    keep: bool = False
    settings: Settings = field(default_factory=Settings)

    @property
    def bases(self) -> Path:
        return (self.cache or self.folder) / "bases"

    def call(self, command: list[str], log: IO[str], **options: Any) -> int:
        """Run a command on this machine, and return its status."""
        options |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, "timeout": LIMIT_S}
        try:
            return subprocess.run(command, **options).returncode
        except subprocess.TimeoutExpired:
            print(f"stopped after {LIMIT_S} s", file=log)
            return 124

    def run(self, command: list[str], **options: Any) -> None:
        """Run a command that has to end well."""
        with open(self.logs / "made.log", "a") as log:
            if status := self.call(command, log, **options):
                raise RuntimeError(f"status {status} of {' '.join(command)}: {log.name}")

    def remove(self, folder: Path) -> None:
        """Remove a machine's files, unless they are kept. Nothing is mounted there after its commands."""
        if not self.keep:
            self.run(["rm", "-rf", "--one-file-system", str(folder)])


class Machine(Protocol):
    """`commands` have names, with which --only selects them."""

    name: str
    about: str
    commands: Mapping[str, Command]

    def missing(self) -> str:
        """Why this machine cannot be made here; empty if it can."""

    def made(self, work: Work) -> AbstractContextManager[Run]:
        """The machine, as long as the context lasts."""


def environment(**more: str) -> dict[str, str]:
    """For a command that runs outside of a machine made of files: this one's, without what make has set in it."""
    return {name: value for name, value in os.environ.items() if name not in MAKES} | more


def lacking(*programs: str) -> str:
    """Reason to skip a machine that needs these programs."""
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/usr/lib/podman", "/usr/libexec/podman"))
    missing = [name for name in programs if not shutil.which(name, path=path)]
    return f"needs {', '.join(missing)}" if missing else ""


def clone(checkout: Path, work: Work) -> None:
    """Make a clone of this checkout's last commit."""
    work.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(checkout)])
