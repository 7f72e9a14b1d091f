"""Findings: a status, one sentence, and how to fix it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hvdtrain.system import stacks

Status = Literal["ok", "warn", "fail"]
STATUSES: tuple[Status, ...] = ("ok", "warn", "fail")
"""From best to worst."""


class Finding(NamedTuple):
    """One result of a check.

    text: what was found, one sentence without a final period.
    remedy: for `warn` and `fail`, the command or change that fixes it; empty for `ok`.
    """

    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    """Jobs run, but slowly or only in some configurations."""
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    """Jobs fail, or compute something else than intended."""
    return Finding("fail", text, remedy)


def wrong_size(launcher: str, expected: int, size: int, gloo: bool) -> Finding:
    """Horovod does not see all processes of the launcher. gloo: they should connect over Gloo, else over MPI."""
    each = "every process is rank 0 and would train alone" if size == 1 else f"Horovod sees {size}"
    builds = "Gloo" if gloo else "MPI; use the mpirun of the MPI that it was built with"
    remedy = (
        "unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS; see horovodrun --check-build: "
        f"{stacks.repair_command()} builds Horovod with {builds}"
    )
    if launcher.endswith("srun") and not gloo:
        remedy = "python -m hvdtrain launch srun, which uses Gloo; or srun --mpi=pmix, if the site's MPI supports it"
    return fail(f"{launcher} started {expected} processes, but {each}", remedy)


def first_line(text: str, limit: int = 200) -> str:
    """The first line of `text` that is not blank, cut to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
