"""This machine with fewer programs: PATH is a folder of links to all but some of them, and the cache is empty."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from machines.machine import Command, Run, Work, clone, environment, lacking


@dataclass(frozen=True)
class NarrowPath:
    name: str
    about: str
    commands: Mapping[str, Command]
    without: tuple[str, ...]

    def missing(self) -> str:
        return lacking("git", "make", "g++", "patch")

    @contextlib.contextmanager
    def made(self, work: Work) -> Iterator[Run]:
        folder = work.folder / self.name
        checkout, programs = folder / "hvdtrain", folder / "bin"
        cache = work.cache / "here" if work.cache else folder / "cache"
        try:
            for made in (programs, cache):
                made.mkdir(parents=True, exist_ok=True)
            link_programs(programs, self.without)
            clone(checkout, work)
            variables = environment(PATH=str(programs), XDG_CACHE_HOME=str(cache))

            def run(command: Command, log: IO[str]) -> int:
                return work.call(["bash", "-c", command.line], log, cwd=checkout, env=variables)

            yield run
        finally:
            work.remove(folder)


def link_programs(folder: Path, without: tuple[str, ...]) -> None:
    """Links to what PATH finds first under each name."""
    for part in filter(os.path.isdir, os.environ["PATH"].split(os.pathsep)):
        for program in Path(part).iterdir():
            link = folder / program.name
            if program.name not in without and os.access(program, os.X_OK) and not os.path.lexists(link):
                link.symlink_to(program)
