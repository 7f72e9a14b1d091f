"""Compares what pip installed with setup/requirements.lock.

usage: python -I -S setup/locked.py REPORT, a file that `pip install --report` wrote

Ends with status 1, and a sentence for each, where a file of a pinned version is none of those that the lock knows.
What the lock does not pin is named: a build from another index than PyPI, such as PyTorch's for CPUs, and what only it
needs. The standard library is enough, so that nothing of what it compares runs before.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")


def read_lock(text: str) -> dict[tuple[str, str], set[str]]:
    """SHA-256 sums of the files of each name and version."""
    sums: dict[tuple[str, str], set[str]] = {}
    for line in text.splitlines():
        if pin := re.match(r"(\S+?)==(\S+)", line):
            files = sums.setdefault((pin[1], pin[2]), set())
        elif found := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            files.add(found[1])
    return sums


def main(report: Path) -> int:
    """The exit status."""
    lock, status, unknown = read_lock(LOCK.read_text()), 0, []
    for item in json.loads(report.read_text())["install"]:
        source, about = item["download_info"], item["metadata"]
        if "dir_info" in source:  # the checkout itself
            continue
        name = re.sub(r"[-_.]+", "-", about["name"]).lower()
        files = lock.get((name, about["version"]))
        found = source.get("archive_info", {}).get("hashes", {}).get("sha256")
        if files is None:
            unknown.append(f"{name} {about['version']}")
        elif found not in files:
            file = source["url"].rpartition("/")[2]
            print(
                f"set-up: {file} has SHA-256 {found}, which {LOCK.name} does not know: it is not the file that was "
                "published; look where pip fetches from (pip config list), or write the lock anew (make lock)",
                file=sys.stderr,
            )
            status = 1
    if unknown:
        print(f"    not in {LOCK.name}, so not compared: {', '.join(unknown)}")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
