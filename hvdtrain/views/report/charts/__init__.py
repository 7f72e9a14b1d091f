"""The charts of a report, and what their looks have in common."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hvdtrain.config.options import TITLES
from hvdtrain.runs import plots
from hvdtrain.views.report.rows import ReportRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN = 3.9  # narrow, so that the text is legible on a phone
FRAMEWORK_COLORS = {"mxnet": plots.BLUE, "torch": plots.ORANGE, "tensorflow": plots.GREEN}
OTHER_COLOR = plots.PINK


def wrapped(label: str, width: int, lines: int) -> str:
    """The label of a row in lines, without a break inside its size."""
    return "\n".join(textwrap.wrap(label.replace(" × ", "\u00a0×\u00a0"), width, max_lines=lines, placeholder=" …"))


def color_of(row: ReportRow) -> str:
    """The color of the row's framework."""
    return FRAMEWORK_COLORS.get(row.framework, OTHER_COLOR)


def framework_legend(figure: Figure, rows: Iterable[ReportRow]) -> None:
    """Name the colors above the chart."""
    from matplotlib.patches import Patch

    names = {row.framework: row for row in rows}
    patches = [Patch(color=color_of(row), label=TITLES.get(name, name)) for name, row in names.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False)
