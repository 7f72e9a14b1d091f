"""The progress bar fits terminals of any width, and the time that is left is always there."""

import io
import re

import pytest
from rich.console import Console

from hvdtrain.runs.console import ProgressBar

FIGURES = ["12,345 images/s", "train loss 0.1234", "accuracy 0.9876", "lr 0.0125"]


@pytest.mark.parametrize(("width", "figures"), [(26, 0), (40, 0), (65, 1), (86, 2), (120, 4), (200, 4)])
def test_figures_that_have_room_are_before_the_time(width, figures):
    file = io.StringIO()
    bar = ProgressBar(100, 0, Console(file=file, width=width, force_terminal=True, color_system=None))
    bar.update(50, "epoch 12/12", FIGURES)
    bar.stop()
    frames = re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]", file.getvalue())
    drawn = next(frame.rstrip() for frame in reversed(frames) if "12/12" in frame)
    assert len(drawn) <= width
    assert re.fullmatch(r"epoch 12/12 [━╸╺ ]*50%(.*) (-:--:--|0:[0-9:]+)", drawn), drawn
    assert [figure in drawn for figure in FIGURES] == [number < figures for number in range(4)]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_above_the_bar_break_between_words(width):
    text = "epoch 1/12: train loss 2.0933, test loss 1.8088, test accuracy 0.5556, lr 0.05, 2,364 images/s, record in "
    text += "a/folder/of/a/name/that/is/longer/than/any/line/of/a/narrow/terminal"
    file = io.StringIO()
    bar = ProgressBar(100, 0, Console(file=file, width=width, force_terminal=True, color_system=None))
    bar.print(text)
    bar.stop()
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).splitlines()
    lines = [line for line in drawn if "starting" not in line and line.strip()]
    assert " ".join(line.strip() for line in lines) == text
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
