"""Compares what pip installed with the lock of a stack.

usage: python -I -S setup/locked.py LOCK REPORT, a file that `pip install --report` wrote
       python -I -S setup/locked.py --list REPORT...    prints what the reports name, as requirements with hashes

Exits with status 1, and one line for each, if a file of a pinned version is not in the lock. Packages that the lock
does not pin are listed: a build from an index other than PyPI, such as PyTorch's for CPUs, and what only it requires.
It uses only the standard library, so that nothing that it checks has run before.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def read_lock(text: str) -> dict[tuple[str, str], set[str]]:
    """SHA-256 of the files of each (name, version)."""
    sums: dict[tuple[str, str], set[str]] = {}
    for line in text.splitlines():
        if pin := re.match(r"(\S+?)==(\S+)", line):
            files = sums.setdefault((pin[1], pin[2]), set())
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            files.add(digest[1])
    return sums


def read_report(report: Path) -> Iterator[tuple[str, str, str | None, str]]:
    """Name, version, SHA-256 and file of each package, except the checkout itself."""
    for item in json.loads(report.read_text())["install"]:
        source, about = item["download_info"], item["metadata"]
        if "dir_info" not in source:
            digest = source.get("archive_info", {}).get("hashes", {}).get("sha256")
            name = re.sub(r"[-_.]+", "-", about["name"]).lower()
            yield name, about["version"], digest, source["url"].rpartition("/")[2]


def compare(lock_file: Path, report: Path) -> int:
    """Compare, print what differs or is not in the lock, and return the exit status."""
    lock, status, unknown = read_lock(lock_file.read_text()), 0, []
    for name, version, digest, file in read_report(report):
        files = lock.get((name, version))
        if files is None:
            unknown.append(f"{name} {version}")
        elif digest not in files:
            print(
                f"set-up: {file} has SHA-256 {digest}, which is not in {lock_file}: it is not the file that was "
                "published; check which index pip uses (pip config list), or update the lock (make lock)",
                file=sys.stderr,
            )
            status = 1
    if unknown:
        print(f"    not in {lock_file.name}, so not compared: {', '.join(unknown)}")
    return status


def main(arguments: list[str]) -> int:
    """Compare or list."""
    if arguments[0] != "--list":
        return compare(Path(arguments[0]), Path(arguments[1]))
    for report in arguments[1:]:
        for name, version, digest, _ in read_report(Path(report)):
            print(f"{name}=={version} --hash=sha256:{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
