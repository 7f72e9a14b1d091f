"""What differs between runs: options, versions, hosts, networks and results."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.views.monitor.content import number, table
from hvdtrain.views.monitor.details import PLACES, Details, flat, value_text
from hvdtrain.views.monitor.run import RunView

ABSENT = object()
"""In the place of a value that a run has not."""
OWN_RESULTS = ("accuracy", "loss", "steps", "images_per_s", "step")
"""Results that a run has under the same or another name while it trains, too."""
MAIN_RESULTS = ("state", "reason", "step", "training loss", "test loss", "accuracy", "images/s")
"""That are shown also if only one run has them; other results, if all runs have them."""
MOST_LAYERS = 300
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
        first = number({"": self.values[0]}, "")
        texts = ["—" if value is ABSENT else value_text(value) for value in self.values]
        if first is None or not self.is_measured:
            return texts
        for index, value in enumerate(self.values[1:], 1):
            other = number({"": value}, "")
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
    found = [Details.read(Path(view.folder)) for view in views]
    places = {f"--{name.replace('_', '-')}" for name in PLACES}
    options = [{name: value for name, value in one.options.items() if name not in places} for one in found]
    networks = [table(one.config, "network") for one in found]
    sections = [
        Section("options", _rows(options)),
        Section("network", _network_rows(networks)),
        Section("ranks and devices", _rows([_placement(one.config) for one in found])),
        Section("versions", _rows([one.versions for one in found])),
        Section("host", _rows([one.host for one in found])),
        Section("results", _result_rows([_results(view, one) for view, one in zip(views, found, strict=True)])),
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


def _results(view: RunView, details: Details) -> dict[str, object]:
    """The results so far."""
    found: dict[str, object] = {
        "state": view.state.name, "reason": view.state.reason or ABSENT, "step": view.step,
        "training loss": view.loss, "test loss": view.test_loss, "accuracy": view.accuracy,
        "images/s": view.images_per_s,
    }  # fmt: skip
    more = {name: value for name, value in details.results.items() if name not in OWN_RESULTS}
    return {name: value for name, value in {**found, **more}.items() if value is not None and value is not ABSENT}


def _result_rows(runs: Sequence[dict[str, object]]) -> list[Row]:
    rows = [row._replace(is_measured=True) for row in _rows(runs)]
    return [row for row in rows if row.name in MAIN_RESULTS or ABSENT not in row.values]


def _network_rows(networks: Sequence[dict[str, Any]]) -> list[Row]:
    """Layers that differ, aligned with those of the first run; and other values of the networks."""
    described = [table(network, "description") or network for network in networks]
    layers = [_layers(one) for one in described]
    rest = [
        flat({name: value for name, value in {**network, **one}.items() if name not in ("layers", "description")})
        for network, one in zip(networks, described, strict=True)
    ]
    return _rows(rest) + _layer_rows(layers)


def _layers(network: dict[str, Any]) -> list[str]:
    """A text for each layer, such as `conv outputs 20 kernel 3`."""
    found = network.get("layers")
    texts = []
    for layer in found[:MOST_LAYERS] if isinstance(found, list) else []:
        values = flat(layer) if isinstance(layer, dict) else {"": layer}
        parts = (f"{'' if name == 'type' else name} {value_text(one)}".strip() for name, one in values.items())
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
