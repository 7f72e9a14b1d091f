"""Diagnosis of an installation, a machine or a job."""

from typing import Any


def examine_host() -> list[dict[str, Any]]:
    """Findings of the checks that are quick enough for every run, for its record; loads the checks only here."""
    from hvdtrain.doctor import quick

    return quick.examine()
