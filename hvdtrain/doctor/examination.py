"""Running the checks: all of them, or those that are quick enough for every run."""

from __future__ import annotations

import time
from typing import Any

from hvdtrain.doctor import job
from hvdtrain.doctor.checks import machine, network, software, variables  # noqa: F401  (each adds its checks to CHECKS)
from hvdtrain.doctor.findings import CHECKS, Finding, Setting, examine
from hvdtrain.system import rank_info

BUDGET_S = 150
"""Time limit for all checks, without the exchange of findings between ranks."""
QUICK = ("python", "numpy", "variables", "threads", "shm", "memory", "limits", "interfaces")
"""Checks that start no process and take no time."""


def quick() -> list[dict[str, Any]]:
    """Findings of the `QUICK` checks on this host, for a run's record."""
    place = rank_info.detect()
    setting = Setting(place, job.local_size(), time.monotonic() + BUDGET_S)
    chosen = [one for one in CHECKS if one.name in QUICK]
    return [row(one.name, one.topic, finding) for one in chosen for finding in examine(one, setting)]


def row(name: str, topic: str, finding: Finding) -> dict[str, Any]:
    """A finding as the values of its JSON form."""
    return {"check": name, "topic": topic, **finding._asdict()}
