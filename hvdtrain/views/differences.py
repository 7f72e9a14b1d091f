"""What differs between runs, side by side: options, networks, ranks, versions, hosts and results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import finite_number
from hvdtrain.views import details
from hvdtrain.views.details import flat, value_text
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import Cell, Column, Section, Table

RESULTS = "results"
"""The kind of values whose relative differences say something."""
SAME_RESULTS = ("accuracy", "loss", "steps", "images_per_s", "step")
"""Results that a run also has under the same or another name while it trains."""
PLACEMENT = ("ranks", "devices", "device", "controller", "steps")
MAX_LAYERS = 300
"""That are compared."""
MISSING = "—"
"""In the place of a value that a run has not."""
MIN_WIDTH = 6
"""Of a column in a narrow terminal."""


class DifferingValue(NamedTuple):
    kind: str
    name: str
    texts: list[str]
    """The value of each run as it is shown; of results, also how much it differs from that of the first run."""


def differences(views: Sequence[RunView]) -> list[DifferingValue]:
    """The values that differ, in the order in which the runs name them."""
    runs = [_kinds(view) for view in views]
    found = []
    for kind in runs[0]:
        names = dict.fromkeys(name for values in runs for name in values[kind])
        for name in names:
            values = [run[kind].get(name) for run in runs]
            if len({_key(value) for value in values}) > 1:
                found.append(DifferingValue(kind, name, list(_texts(values, kind == RESULTS))))
    return found


def _kinds(view: RunView) -> dict[str, Mapping[str, object]]:
    run = view.run
    options = {name: value for name, value in details.options(run).items() if name not in details.PLACES}
    return {
        "options": options,
        "network": _network(run),
        "ranks and devices": {name: run.config.values.get(name) for name in PLACEMENT},
        "versions": details.versions(run),
        "host": details.host(run),
        RESULTS: _results(view),
    }


def _network(run: RecordedRun) -> dict[str, object]:
    """The values of a network, and a text for each of its layers, such as `conv outputs 20 kernel 3`."""
    network = run.config.table("network")
    described: dict[str, Any] = {**network.values, **network.table("description").values}
    layers = described.pop("layers", None)
    described.pop("description", None)
    texts = {}
    for number, layer in enumerate(layers[:MAX_LAYERS] if isinstance(layers, list) else [], 1):
        values = flat(layer) if isinstance(layer, dict) else {"": layer}
        parts = (f"{'' if name == 'type' else name} {value_text(value)}".strip() for name, value in values.items())
        texts[f"layer {number}"] = " ".join(parts)
    return {**flat(described), **texts}


def _results(view: RunView) -> dict[str, object]:
    changes = view.run.changes
    known = {*SAME_RESULTS, *view.metrics}
    more = {name: value for name, value in details.results(view.run).items() if name not in known}
    return {
        "state": view.state.name, "reason": view.state.reason or None, "step": view.step,
        "training loss": view.loss, view.loss_name: view.evaluated_loss, **view.metrics,
        f"{view.run.unit}/s": view.images_per_s,
        "ranks lost": changes.losses, "ranks joined": changes.joins, "shards moved": changes.moves, **more,
    }  # fmt: skip


def _key(value: object) -> object:
    """Equal for values that are the same; 1 and 1.0 are."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value == value else (type(value).__name__, value_text(value))


def _texts(values: Sequence[object], are_results: bool) -> Iterator[str]:
    first = finite_number(values[0]) if are_results else None
    for value in values:
        other = finite_number(value)
        changed = relative(other, first) if first is not None and other != first else ""
        yield MISSING if value is None else f"{value_text(value)}{changed}"


def relative(value: float | None, base: float) -> str:
    """` (+3.1 %)`: how much a value differs from another; empty where that says nothing."""
    percent = 100 * (value / base - 1) if base and value is not None else math.inf
    if abs(percent) >= 1e4 or math.isnan(percent):
        return ""
    return f" ({percent:+.0f} %)" if abs(percent) >= 10 else f" ({percent:+.2g} %)"


def difference_lines(names: Sequence[str], found: Sequence[DifferingValue], width: int | None) -> list[Text]:
    """The table, with a color for values that differ from the first run's. names: of the runs.

    width: of the terminal, in which long values are wrapped; None for a file: a line for each row.
    """
    columns = [Column("kind", 1, left=True)]
    columns += [Column(name, left=True, least=MIN_WIDTH, overflow="wrap") for name in ("value", *names)]
    rows: list[list[Cell]] = [
        [one.kind, one.name, *(Text(text, "" if text == one.texts[0] else "cyan") for text in one.texts)]
        for one in found
    ]
    return Table(columns, [Section(rows)], ruled=False).lines(width)
