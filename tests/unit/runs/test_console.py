"""The progress bar fits terminals of any width, and the time that is left is always there."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from hvdtrain.runs.console import ProgressBar

FIGURES = ["12,345 images/s", "loss 0.1234", "accuracy 0.9876", "lr 0.0125"]


@pytest.mark.parametrize(
    ("width", "figures"), [(26, 0), (40, 0), (42, 1), (59, 2), (60, 2), (80, 3), (90, 4), (120, 4), (200, 4)]
)
def test_bar_and_time_fit_and_figures_that_have_room(width, figures):
    file = io.StringIO()
    bar = ProgressBar(100, 0, Console(file=file, width=width, force_terminal=True, color_system=None))
    bar.update(50, "epoch 12/12", FIGURES)
    bar.stop()
    frames = re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]", file.getvalue())
    drawn = next(frame.rstrip() for frame in reversed(frames) if "12/12" in frame)
    assert len(drawn) <= width
    assert re.fullmatch(r"epoch 12/12 [━╸╺ ]{0,40}  50%(.*) (-:--:--|0:[0-9:]+)", drawn), drawn
    assert [figure in drawn for figure in FIGURES] == [number < figures for number in range(4)]
    assert ("━━" in drawn) == (width not in (26, 42, 59)), "it has the room that figures leave, if that is enough"
