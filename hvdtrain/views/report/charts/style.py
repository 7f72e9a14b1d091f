"""What all charts look like."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hvdtrain.config.options import TITLES
from hvdtrain.views.report.rows import Row

if TYPE_CHECKING:  # importing Matplotlib takes half a second, so only drawing does it
    from matplotlib.figure import Figure

WIDTH_IN = 3.9  # narrow, so that the text is legible on a phone
# Colors that are distinct for color-blind readers: Okabe and Ito, Color Universal Design, 2008.
COLORS = {"mxnet": "#0072B2", "torch": "#E69F00", "tensorflow": "#009E73"}
OTHER_COLOR = "#CC79A7"
SERIES_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = "osD^vP"
LINES = ("-", "--", "-.")
"""So that lines on top of each other are all visible."""
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # an SVG in <img> cannot use the fonts of the page
    "text.parse_math": False,  # a dollar sign in a name is not math
}


def wrapped(label: str, width: int, lines: int) -> str:
    """The label of a row in lines, without a break inside its size."""
    return "\n".join(textwrap.wrap(label.replace(" × ", "\u00a0×\u00a0"), width, max_lines=lines, placeholder=" …"))


def color_of(row: Row) -> str:
    """The color of the row's framework."""
    return COLORS.get(row.framework, OTHER_COLOR)


def framework_legend(figure: Figure, rows: Iterable[Row]) -> None:
    """Name the colors above the chart."""
    from matplotlib.patches import Patch

    names = {row.framework: row for row in rows}
    patches = [Patch(color=color_of(row), label=TITLES.get(name, name)) for name, row in names.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False)
