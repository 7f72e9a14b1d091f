"""What differs between runs: options, versions, hosts, networks and results; and how `diff` shows it side by side."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hvdtrain.runs.records import Record
from hvdtrain.system.json_text import finite_number
from hvdtrain.views import details
from hvdtrain.views.details import flat, value_text
from hvdtrain.views.run_view import RunView
from hvdtrain.views.terminal.table import Column, table_lines

ABSENT = object()
"""In the place of a value that a run has not."""
CURRENT_RESULTS = ("accuracy", "loss", "steps", "images_per_s", "step")
"""Results that a run also has under the same or another name while it trains."""
MAIN_RESULTS = ("state", "reason", "step", "training loss", "test loss", "accuracy", "images/s")
"""That are shown also if only one run has them; other results, if all runs have them."""
MAX_LAYERS = 300
"""That are compared."""


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


class Section(NamedTuple):
    """Differences of one kind."""

    name: str
    rows: list[Row]


def differences(views: Sequence[RunView]) -> list[Section]:
    """The differences of these runs, by kind; kinds without any are left out."""
    runs = [view.run for view in views]
    options = [details.options(run) for run in runs]
    shared = [{name: value for name, value in of_run.items() if name not in details.PLACES} for of_run in options]
    sections = [
        Section("options", _rows(shared)),
        Section("network", _network_rows([run.config.table("network") for run in runs])),
        Section("ranks and devices", _rows([_placement(run.config.values) for run in runs])),
        Section("versions", _rows([details.versions(run) for run in runs])),
        Section("host", _rows([details.host(run) for run in runs])),
        Section("results", _result_rows([_results(view) for view in views])),
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
        "training loss": view.loss, "test loss": view.test_loss, "accuracy": view.accuracy,
        "images/s": view.images_per_s,
    }  # fmt: skip
    more = {name: value for name, value in details.results(view.run).items() if name not in CURRENT_RESULTS}
    return {name: value for name, value in {**current, **more}.items() if value is not None and value is not ABSENT}


def _result_rows(runs: Sequence[dict[str, object]]) -> list[Row]:
    rows = [row._replace(is_measured=True) for row in _rows(runs)]
    return [row for row in rows if row.name in MAIN_RESULTS or ABSENT not in row.values]


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


def wrapped_table(names: Sequence[str], sections: Sequence[Section], plain: bool) -> Table:
    """For a terminal: long values are wrapped within their columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for number, section in enumerate(sections):
        if number:
            table.add_row()
        table.add_row(Text(section.name, "bold underline"))
        for row in section.rows:
            texts = [_dashed(text, plain) for text in row.texts()]
            table.add_row(Text(row.name), *(_styled(text, texts[0]) for text in texts))
    return table


def file_lines(names: Sequence[str], sections: Sequence[Section], plain: bool) -> list[Text]:
    """For a file: a line for each row, which is not cut."""
    rows = [(section.name, row.name, [_dashed(text, plain) for text in row.texts()]) for section in sections
            for row in section.rows]  # fmt: skip
    columns = [Column("kind", [Text(row[0]) for row in rows], 0), Column("value", [Text(row[1]) for row in rows], 0)]
    columns += [Column(name, [Text(row[2][run]) for row in rows], 0) for run, name in enumerate(names)]
    return table_lines(columns, None)


def _dashed(text: str, plain: bool) -> str:
    return "-" if text == "—" and plain else text


def _styled(text: str, first: str) -> Text:
    """A value; where it differs from that of the first run, in another color."""
    return Text(text, "" if text == first else "cyan")


def headings(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The names of the runs; their folders where two have the same name, shortened by what all have in common."""
    headings = names if len(set(names)) == len(names) else folders
    return [heading if cell_len(heading) else "run" for heading in headings]
