"""Finds the SHA-256 of packages that a resolver chose in the lock of a stack.

usage: python -I -S setup/locked.py LOCK CHOSEN LOCKED OTHERS

CHOSEN is what `uv pip compile` wrote, or `pip install --report`. It writes two files of requirements: LOCKED, each with
the hashes of the lock, and OTHERS, which the lock does not have, and prints the latter: a build from another index than
PyPI, such as PyTorch's for CPUs, and what only it requires.
It uses only the standard library: nothing that was installed runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.M)


def read_lock(text: str) -> dict[str, list[str]]:
    """SHA-256 of the files of each name==version."""
    sums: dict[str, list[str]] = {}
    files: list[str] = []
    for line in text.splitlines():
        if pin := PIN.match(line):
            files = sums.setdefault(pin[0], [])
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            files.append(digest[1])
    return sums


def chosen(text: str) -> Iterator[str]:
    """name==version of each package, except the checkout itself."""
    if not text.startswith("{"):
        yield from (pin[0] for pin in PIN.finditer(text))
        return
    for item in json.loads(text)["install"]:
        if "dir_info" not in item["download_info"]:
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            yield f"{name}=={item['metadata']['version']}"


def main(arguments: list[str]) -> int:
    """Write both files, and print what is not in the lock."""
    lock, chosen_file, locked, others = map(Path, arguments)
    sums, pins = read_lock(lock.read_text()), list(chosen(chosen_file.read_text()))
    unknown = [pin for pin in pins if not sums.get(pin)]
    lines = (
        " ".join([pin, *(f"--hash=sha256:{digest}" for digest in sums[pin])]) for pin in pins if pin not in unknown
    )
    locked.write_text("".join(f"{line}\n" for line in lines))
    others.write_text("".join(f"{pin}\n" for pin in unknown))
    if unknown:
        print(f"    not in {lock.name}, so not compared: {', '.join(pin.replace('==', ' ') for pin in unknown)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
