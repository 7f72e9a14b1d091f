"""Make fresh machines on this one, and run README's commands on each: python -m machines [--only PATTERN ...] [--list]
                                                      [--cache FOLDER] [--logs FOLDER] [--keep] [--write]

Needs tests/ on PYTHONPATH, as `make test-machines` sets it, and no other package. A machine that cannot be made here is
skipped, with the reason. Ends with status 1 if a command failed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from machines import table
from machines.known import GROUPS
from machines.machine import ROOT, Machine, Work

PAGE = ROOT / "docs" / "install.md"
LAST_LINES = 30
"""Of a command that failed, which are printed."""


def chosen(machine: Machine, patterns: Sequence[str]) -> list[str]:
    """The commands that patterns such as debian-12-* and */train name."""
    names = {command: (machine.name, f"{machine.name}/{command}") for command in machine.commands}
    return [one for one in names if any(fnmatch.fnmatch(name, pattern) for name in names[one] for pattern in patterns)]


def try_machine(machine: Machine, commands: Sequence[str], work: Work) -> dict[str, str]:
    """Results by command."""
    if reason := machine.missing():
        return dict.fromkeys(commands, f"skipped: {reason}")
    results: dict[str, str] = {}
    try:
        with machine.made(work) as run:
            for command in commands:
                log, begin = work.logs / f"{machine.name}.{command}.log", time.monotonic()
                with open(log, "w") as said:
                    status = run(machine.commands[command], said)
                seconds = time.monotonic() - begin
                results[command] = f"failed, status {status}" if status else f"passed, {seconds:.0f} s"
                print(f"{machine.name}/{command}: {results[command]}", flush=True)
                if status:
                    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
                    print(*(f"    {line}" for line in [*lines, str(log)]), sep="\n", flush=True)
    except (RuntimeError, OSError) as error:
        print(f"{machine.name} cannot be made: {error}", flush=True)
        results = {**dict.fromkeys(commands, "failed: cannot be made"), **results}
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help="machines, or machine/command")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep what machines download and build there")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="what commands say (a new temporary folder)")
    parser.add_argument("--keep", action="store_true", help="do not remove the machines")
    parser.add_argument("--write", action="store_true", help=f"write the results into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--list", action="store_true", help="list machines and commands, and run nothing")
    options = parser.parse_args()
    known = [machine for group in GROUPS for machine in group]
    for pattern in options.only:
        if not any(chosen(machine, [pattern]) for machine in known):
            parser.error(f"no machine and no machine/command is called {pattern}: --list shows them")
    machines = [(machine, chosen(machine, options.only)) for machine in known]
    if options.list:
        for machine, commands in machines:
            print(*(f"{machine.name}/{command}" for command in commands), sep="\n", end="\n" * bool(commands))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes what was made
    logs = (options.logs or Path(tempfile.mkdtemp(prefix="hvdtrain-machines-logs-"))).resolve()
    logs.mkdir(parents=True, exist_ok=True)
    cells: dict[tuple[str, str], str] = {}
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-machines-"))
    folder.chmod(0o755)  # for ordinary users
    work = Work(folder, logs, options.cache and options.cache.resolve(), options.keep)
    try:
        for machine, commands in machines:
            results = try_machine(machine, commands, work) if commands else {}
            cells |= {(machine.name, command): result for command, result in results.items()}
            if options.write:
                PAGE.write_text(table.written(PAGE.read_text(), GROUPS, cells))
    finally:
        with contextlib.suppress(RuntimeError):  # its log says why; the results count for more
            work.remove(folder)
    print(f"\n{table.tables(GROUPS, cells)}\noutput of the commands: {logs}")
    if options.keep:
        print(f"machines: {folder}")
    return any(cell.startswith("failed") for cell in cells.values())


if __name__ == "__main__":
    sys.exit(main())
