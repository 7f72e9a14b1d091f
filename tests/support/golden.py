"""Recorded command lines and batch scripts, which somebody has read once."""

from __future__ import annotations

import os

from support.jobs import ROOT

GOLDEN = ROOT / "tests" / "unit" / "jobs" / "golden"
ODD_ARGUMENTS = ["python", "my train.py", "--name", 'it\'s "odd"; $HOME `x` *', "line\nbreak", "grün", ""]


def assert_recorded(name: str, text: str) -> None:
    """The text is as recorded; HVDTRAIN_RECORD=1 records it again, to be read again."""
    path = GOLDEN / name
    if os.environ.get("HVDTRAIN_RECORD"):
        path.write_text(text)
    assert text == path.read_text(), f"{name}: HVDTRAIN_RECORD=1 records it again"
