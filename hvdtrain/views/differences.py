"""What differs between runs: options, versions, hosts, networks and results; and how `diff` shows it side by side."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from hvdtrain.runs.records import Record
from hvdtrain.system.text import finite_number
from hvdtrain.views import details
from hvdtrain.views.details import flat, value_text
from hvdtrain.views.listing import metric_names
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import GAP, INDENT, Cell, Column, Section, Table

ABSENT = object()
"""In the place of a value that a run has not."""
CURRENT_RESULTS = ("accuracy", "loss", "steps", "images_per_s", "step")
"""Results that a run also has under the same or another name while it trains."""
MAIN_RESULTS = ("state", "reason", "step", "training loss", "validation loss", "test loss", "images/s", "rows/s")
"""That are shown also if only one run has them, as metrics are; other results, if all runs have them."""
MAX_LAYERS = 300
"""That are compared."""
MIN_WIDTH = 6
"""Of the values of a run in a narrow terminal."""


class Row(NamedTuple):
    """A value that is not the same in all runs."""

    name: str
    values: tuple[object, ...]
    """That of each run; ABSENT for a run that has none."""

    is_measured: bool = False
    """Whether it is a result, whose relative difference says something."""

    def texts(self) -> list[str]:
        """The values as they are shown; of results, how much they differ from that of the first run."""
        first = finite_number(self.values[0])
        texts = ["—" if value is ABSENT else value_text(value) for value in self.values]
        if first is None or not self.is_measured:
            return texts
        for index, value in enumerate(self.values[1:], 1):
            other = finite_number(value)
            if other is not None and other != first:
                texts[index] += relative(other, first)
        return texts


def relative(value: float, base: float) -> str:
    """` (+3.1 %)`: how much a value differs from another; empty where that says nothing."""
    percent = 100 * (value / base - 1) if base else math.inf
    if abs(percent) >= 1e4 or math.isnan(percent):
        return ""
    return f" ({percent:+.0f} %)" if abs(percent) >= 10 else f" ({percent:+.2g} %)"


class Differences(NamedTuple):
    """Differences of one kind."""

    name: str
    rows: list[Row]


def differences(views: Sequence[RunView]) -> list[Differences]:
    """The differences of these runs, by kind; kinds without any are left out."""
    runs = [view.run for view in views]
    options = [details.options(run) for run in runs]
    shared = [{name: value for name, value in of_run.items() if name not in details.PLACES} for of_run in options]
    sections = [
        Differences("options", _rows(shared)),
        Differences("network", _network_rows([run.config.table("network") for run in runs])),
        Differences("ranks and devices", _rows([_placement(run.config.values) for run in runs])),
        Differences("versions", _rows([details.versions(run) for run in runs])),
        Differences("host", _rows([details.host(run) for run in runs])),
        Differences("results", _result_rows([_results(view) for view in views], metric_names(views))),
    ]
    return [section for section in sections if section.rows]


def _rows(runs: Sequence[dict[str, object]]) -> list[Row]:
    """The values that differ, in the order in which the runs name them."""
    names = dict.fromkeys(name for values in runs for name in values)
    rows = [Row(name, tuple(values.get(name, ABSENT) for values in runs)) for name in names]
    return [row for row in rows if len({_key(value) for value in row.values}) > 1]


def _key(value: object) -> str:
    """Equal for values that are the same; 1 and 1.0 are."""
    if value is ABSENT:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    return f"{type(value).__name__} {value!r}" if isinstance(value, int | float | str) else f"= {value_text(value)}"


def _placement(config: dict[str, Any]) -> dict[str, object]:
    names = ("ranks", "devices", "device", "controller", "steps")
    return {name: config[name] for name in names if name in config}


def _results(view: RunView) -> dict[str, object]:
    """The results so far."""
    current: dict[str, object] = {
        "state": view.state.name, "reason": view.state.reason or ABSENT, "step": view.step,
        "training loss": view.loss, view.loss_name: view.evaluated_loss, **view.metrics,
        f"{view.run.unit}/s": view.images_per_s,
    }  # fmt: skip
    changes = view.run.changes
    current |= {"ranks lost": changes.losses, "ranks joined": changes.joins, "shards moved": changes.moves}
    known = {*CURRENT_RESULTS, *view.metrics}
    more = {name: value for name, value in details.results(view.run).items() if name not in known}
    return {name: value for name, value in {**current, **more}.items() if value is not None and value is not ABSENT}


def _result_rows(runs: Sequence[dict[str, object]], metrics: Iterable[str]) -> list[Row]:
    rows = [row._replace(is_measured=True) for row in _rows(runs)]
    names = {*MAIN_RESULTS, *metrics}
    return [row for row in rows if row.name in names or ABSENT not in row.values]


def _network_rows(networks: Sequence[Record]) -> list[Row]:
    """Layers that differ, aligned with those of the first run; and other values of the networks."""
    described = [network.table("description").values or network.values for network in networks]
    rest = []
    for network, description in zip(networks, described, strict=True):
        values = {**network.values, **description}
        rest.append(flat({name: value for name, value in values.items() if name not in ("layers", "description")}))
    return _rows(rest) + _layer_rows([_layers(description) for description in described])


def _layers(network: dict[str, Any]) -> list[str]:
    """A text for each layer, such as `conv outputs 20 kernel 3`."""
    layers = network.get("layers")
    texts = []
    for layer in layers[:MAX_LAYERS] if isinstance(layers, list) else []:
        values = flat(layer) if isinstance(layer, dict) else {"": layer}
        parts = (f"{'' if name == 'type' else name} {value_text(value)}".strip() for name, value in values.items())
        texts.append(" ".join(parts))
    return texts


def _layer_rows(layers: Sequence[list[str]]) -> list[Row]:
    cells: dict[tuple[int, int], dict[int, str]] = {(place, 0): {0: text} for place, text in enumerate(layers[0])}
    for run, other in enumerate(layers[1:], 1):
        matcher = difflib.SequenceMatcher(a=layers[0], b=other, autojunk=False)
        for _, first, last, begin, end in matcher.get_opcodes():
            common = min(last - first, end - begin)
            for offset in range(common):
                cells[first + offset, 0][run] = other[begin + offset]
            for inserted, text in enumerate(other[begin + common : end], 1):
                cells.setdefault((first + common - 1, inserted), {})[run] = text
    rows = []
    for (place, inserted), texts in sorted(cells.items()):
        values = tuple(texts.get(run, ABSENT) for run in range(len(layers)))
        name = f"after layer {place + 1}" if inserted else f"layer {place + 1}"
        if len({_key(value) for value in values}) > 1:
            rows.append(Row(name, values))
    return rows


def difference_lines(
    names: Sequence[str], sections: Sequence[Differences], width: int | None, plain: bool
) -> list[Text]:
    """The table. width: of the terminal, in which long values are wrapped; None for a file: a line for each row."""
    if width is None:
        values = [Column("kind", left=True), Column("value", left=True)]
        rows: list[list[Cell]] = [
            [part.name, row.name, *_texts(row.texts(), plain)] for part in sections for row in part.rows
        ]
        table = Table([*values, *(Column(name, left=True) for name in names)], [Section(rows)], ruled=False)
        return table.lines(None, plain)
    longest = INDENT + max((cell_len(row.name) for part in sections for row in part.rows), default=0)
    first = min(longest, width // (len(names) + 1))
    least = max((width - first) // len(names) - GAP, MIN_WIDTH)
    columns = [Column("", left=True, least=first, overflow="wrap")]
    columns += [Column(name, left=True, least=least, overflow="wrap") for name in names]
    rows_of = [Section([[row.name, *_texts(row.texts(), plain)] for row in part.rows], part.name) for part in sections]
    return Table(columns, rows_of, ruled=False).lines(width, plain)


def _texts(values: Sequence[str], plain: bool) -> list[Text]:
    """The values of a row; those that differ from the first run's have another color."""
    shown = ["-" if value == "—" and plain else value for value in values]
    return [Text(value, "" if value == shown[0] else "cyan") for value in shown]


def headings(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The names of the runs; their folders where two have the same name, shortened by what all have in common."""
    distinct = list(names) if len(set(names)) == len(names) else list(folders)
    return [name if cell_len(name) else "run" for name in distinct]
