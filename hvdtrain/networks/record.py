"""Networks as JSON or TOML values, and back.

A layer is a table with its `type` and values; a residual layer has the lists `body` and `shortcut`.
"""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any

import msgspec
import numpy as np

from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.layers import LARGEST, LAYERS, Layer, Residual
from hvdtrain.system.text import did_you_mean

KINDS: dict[str, type[Layer]] = {layer.kind: layer for layer in LAYERS}
FROM_DATA = ("inputs", "shape")
"""Fields that `Network.for_data` sets."""
BRANCHES = ("body", "shortcut")
MAX_LAYERS, MAX_DEPTH = 10_000, 20
"""Layers of a network, and residual layers within each other, at most."""


def to_record(network: Network) -> dict[str, Any]:
    """The network as JSON values; `from_record` is its inverse."""
    record = {"layers": [_layer_record(layer) for layer in network.layers]}
    return record if network.input_shape is None else {"input_shape": _plain(network.input_shape), **record}


def _layer_record(layer: Layer) -> Any:
    """A layer's type, and the values that are not the default; what is not a layer stays as it is."""
    if not isinstance(layer, LAYERS):
        return layer
    record: dict[str, Any] = {"type": layer.kind}
    for name, default in _fields(type(layer)).items():
        if (value := getattr(layer, name)) != default:
            value = _plain(value)
            record[name] = [_layer_record(inner) for inner in value] if isinstance(value, list) else value
    return record


def _plain(value: Any) -> Any:
    """A value of a layer or a shape without NumPy's types."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def from_record(record: Any) -> Network:
    """The network of a JSON or TOML value. Raises ValueError, which says where what is wrong."""
    if not isinstance(record, dict) or not isinstance(record.get("layers"), list):
        raise ValueError("has no list of layers")
    if unknown := record.keys() - {"layers", "input_shape"}:
        raise ValueError(f"has an unknown key {min(unknown)!r:.60}; it may have input_shape and layers")
    shape = record.get("input_shape")
    if shape is not None and not (_is_shape(shape) and len(shape) == 3):
        raise ValueError(f"input_shape is {reprlib.repr(shape)}, not three numbers: channels, height, width")
    if not 0 < _count(record["layers"]) <= MAX_LAYERS:
        raise ValueError(f"has no layers, or more than {MAX_LAYERS}")
    return Network(_layers(record["layers"], ""), tuple(shape) if shape else None)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(length) is int and 0 < length <= LARGEST for length in value)


def _count(layers: Any, depth: int = 0) -> int:
    """Number of layers, with those of residual layers; stops at MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ValueError(f"has residual layers within each other, deeper than {MAX_DEPTH}")
    branches = [layer.get(name) for layer in layers if isinstance(layer, dict) for name in BRANCHES]
    return len(layers) + sum(_count(branch, depth + 1) for branch in branches if isinstance(branch, list))


def _layers(records: Any, within: str) -> tuple[Layer, ...]:
    if not isinstance(records, list):
        raise ValueError(f"{within[:-2]}: {reprlib.repr(records)} is not a list of layers")
    return tuple(_layer(record, f"{within}layer {number}") for number, record in enumerate(records, 1))


def _layer(record: Any, where: str) -> Layer:
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        raise ValueError(f"{where}: {reprlib.repr(record)} is not a layer with a type")
    kind = KINDS.get(record["type"])
    if not kind:
        hint = did_you_mean(record["type"], KINDS)
        raise ValueError(f"{where}: no type {record['type']!r:.60}{hint}; there are {', '.join(KINDS)}")
    where = f"{where} ({record['type']})"
    values, known = {name: value for name, value in record.items() if name != "type"}, _fields(kind)
    for name in values.keys() - known.keys():
        has = f"; it has {', '.join(known)}" if known else ""
        raise ValueError(f"{where}: no value {name!r:.60}{did_you_mean(name, known)}{has}")
    if kind is Residual and "body" in values:
        return Residual(*(_layers(values.get(name, []), f"{where}, {name}, ") for name in BRANCHES))
    try:
        msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, _, name = str(error).partition(" - at `$.")  # as "Expected `int`, got `float` - at `$.stride`"
        raise ValueError(f"{where}: {name.strip('`')}{': ' * bool(name)}{problem}") from None
    return kind(**values)


def _fields(kind: type) -> dict[str, Any]:
    """The fields of a layer that a description has, and their defaults."""
    return {field.name: field.default for field in dataclasses.fields(kind) if field.name not in FROM_DATA}


def shaped_to_record(network: ShapedNetwork) -> dict[str, Any]:
    """The network, its input shape and number of classes as JSON values; `shaped_from_record` is the inverse."""
    return {
        "description": to_record(network.network),
        "input_shape": list(network.input_shape),
        "classes": network.classes,
    }


def shaped_from_record(record: Any, model: str) -> ShapedNetwork:
    """The network of a JSON value. model: names it in messages. Raises ValueError or UserError if it is not one."""
    if not isinstance(record, dict):
        raise ValueError("has no network")
    shape, classes = record.get("input_shape"), record.get("classes")
    if shape is None or not (_is_shape(shape) and type(classes) is int and 0 <= classes <= LARGEST):
        raise ValueError("has no input_shape, or no number of classes")
    return from_record(record.get("description")).for_data(tuple(shape), classes, model)
