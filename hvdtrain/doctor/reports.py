"""Reports of ranks, as JSON values, and how they are merged into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hvdtrain.doctor.check import Check
from hvdtrain.doctor.findings import Finding


def rows(check: Check, findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings of a check as JSON values."""
    return [{"check": check.name, "topic": check.topic, **finding._asdict()} for finding in findings]


def merge(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings of all ranks, grouped by check; equal ones once, with the ranks and hosts that have them.

    `everywhere` is set for a finding that all ranks have which ran the check.
    """
    ran = Counter(name for report in reports for name in {one["check"] for one in report["findings"]})
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for report in reports:
        for one in report["findings"]:
            key = (one["check"], one["status"], one["text"], one["remedy"])
            entry = merged.setdefault(key, {**one, "ranks": [], "hosts": []})
            if report["rank"] not in entry["ranks"]:
                entry["ranks"].append(report["rank"])
            if report["host"] not in entry["hosts"]:
                entry["hosts"].append(report["host"])
    order = list(dict.fromkeys(one["check"] for report in reports for one in report["findings"]))
    listed = sorted(merged.values(), key=lambda one: order.index(one["check"]))
    for one in listed:
        one["everywhere"] = len(one["ranks"]) == ran[one["check"]]
    return listed
