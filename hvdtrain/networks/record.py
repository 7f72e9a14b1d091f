"""Networks as JSON or TOML values, and back.

A layer is a table with its `type` and values; a residual layer has the lists `body` and `shortcut`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.layers import LARGEST, LAYERS, Layer, Residual
from hvdtrain.system.text import did_you_mean

KINDS: dict[str, type[Layer]] = {layer.kind: layer for layer in LAYERS}
FROM_DATA = ("inputs", "shape")
"""Fields that `Network.for_data` sets."""
MAX_LAYERS, MAX_DEPTH = 10_000, 20
"""Layers of a network, and residual layers within each other, at most."""


def to_record(network: Network) -> dict[str, Any]:
    """The network as JSON values; `from_record` is its inverse."""
    shape = {"input_shape": _as_list(network.input_shape)} if network.input_shape is not None else {}
    return {**shape, "layers": [_layer_record(layer) for layer in network.layers]}


def _as_list(shape: Any) -> Any:
    if not isinstance(shape, tuple | list):
        return shape
    return [length.item() if isinstance(length, np.generic) else length for length in shape]


def _layer_record(layer: Layer) -> Any:
    """A layer's type, and the values that are not the default; what is not a layer stays as it is."""
    if not isinstance(layer, LAYERS):
        return layer
    record: dict[str, Any] = {"type": layer.kind}
    for field in _fields(type(layer)):
        value = getattr(layer, field.name)
        if isinstance(value, np.generic):
            value = value.item()
        if value != field.default:
            branch = isinstance(layer, Residual) and isinstance(value, tuple | list)
            record[field.name] = [_layer_record(inner) for inner in value] if branch else value
    return record


def from_record(record: Any) -> Network:
    """The network of a JSON or TOML value. Raises ValueError, which says where what is wrong."""
    if not isinstance(record, dict) or not isinstance(record.get("layers"), list):
        raise ValueError("has no list of layers")
    if unknown := record.keys() - {"layers", "input_shape"}:
        raise ValueError(f"has an unknown key {min(unknown)!r:.60}; it may have input_shape and layers")
    shape = record.get("input_shape")
    if shape is not None and not (_is_shape(shape) and len(shape) == 3):
        raise ValueError(f"input_shape is {_text(shape)}, not three numbers: channels, height, width")
    if not 0 < _count(record["layers"]) <= MAX_LAYERS:
        raise ValueError(f"has no layers, or more than {MAX_LAYERS}")
    return Network(_layers(record["layers"], ""), tuple(shape) if shape else None)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(length) is int and 0 < length <= LARGEST for length in value)


def _count(layers: Any, depth: int = 0) -> int:
    """Number of layers, with those of residual layers; stops at MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ValueError(f"has residual layers within each other, deeper than {MAX_DEPTH}")
    branches = [layer.get(name) for layer in layers if isinstance(layer, dict) for name in ("body", "shortcut")]
    return len(layers) + sum(_count(branch, depth + 1) for branch in branches if isinstance(branch, list))


def _layers(records: list[Any], within: str) -> tuple[Layer, ...]:
    return tuple(_layer(record, f"{within}layer {number}") for number, record in enumerate(records, 1))


def _layer(record: Any, where: str) -> Layer:
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        raise ValueError(f"{where}: {_text(record)} is not a layer with a type")
    kind = KINDS.get(record["type"])
    if not kind:
        hint = did_you_mean(record["type"], KINDS)
        raise ValueError(f"{where}: no type {record['type']!r:.60}{hint}; there are {', '.join(KINDS)}")
    where = f"{where} ({record['type']})"
    values = {name: value for name, value in record.items() if name != "type"}
    problem = next(_problems(kind, values), "")
    if problem:
        raise ValueError(f"{where}: {problem}")
    if kind is Residual:
        return Residual(*(_layers(values.get(name, []), f"{where}, {name}, ") for name in ("body", "shortcut")))
    return kind(**values)


def _problems(kind: type, values: dict[str, Any]) -> Iterator[str]:
    """Values that a layer of this kind does not have, or that have another type, and those that it lacks."""
    fields = {field.name: field for field in _fields(kind)}
    for name in values.keys() - fields.keys():
        known = f"; it has {', '.join(fields)}" if fields else ""
        yield f"no value {name!r:.60}{did_you_mean(name, fields)}{known}"
    hints = get_type_hints(kind)
    for name, field in fields.items():
        if name in values and not _has_type(values[name], hints[name]):
            yield f"{name} is {_text(values[name])}, not {_kind_text(hints[name])}"
        if name not in values and field.default is dataclasses.MISSING:
            yield f"{name} is missing"


def _fields(kind: type) -> list[dataclasses.Field[Any]]:
    """The fields of a layer that a description has."""
    return [field for field in dataclasses.fields(kind) if field.name not in FROM_DATA]


def _has_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        return any(_has_type(value, choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, list)
    if get_args(kind):
        return isinstance(value, str) and value in get_args(kind)
    if type(value) is int:
        return kind in (int, float) and abs(value) <= LARGEST
    return type(value) is kind


def _kind_text(kind: Any) -> str:
    """The values of a type, for messages."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_kind_text, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list of layers"
    if get_args(kind):
        return " or ".join(map(repr, get_args(kind)))
    return {int: f"an integer up to {LARGEST}", float: "a number", bool: "true or false", str: "a text"}[kind]


def _text(value: Any) -> str:
    """The beginning of a value, for messages; Python prints no integer of thousands of digits, and no deep nesting."""
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):
        return "too large a value"


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
    if shape is None or not (_is_shape(shape) and type(classes) is int and 0 < classes <= LARGEST):
        raise ValueError("has no input_shape, or no number of classes")
    return from_record(record.get("description")).for_data(tuple(shape), classes, model)
