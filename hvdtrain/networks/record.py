"""Networks as JSON or TOML values, and back.

A layer is a table with its `type` and values; a residual layer has the lists `body` and `shortcut`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.layers import AnyLayer, Count, Layer, Positive, Residual
from hvdtrain.system.text import did_you_mean, printable

Schema = TypeVar("Schema")
FROM_DATA = "shape"
"""The field that `Network.for_data` sets."""
FIELDS = {
    str(kind.__struct_config__.tag): [name for name in kind.__struct_fields__ if name != FROM_DATA]
    for kind in get_args(AnyLayer)
}
"""What a description has of each kind of layer."""
MAX_LAYERS, MAX_DEPTH = 10_000, 20
"""Layers of a network, and residual layers within each other, at most."""
TOO_DEEP = f"has residual layers within each other, deeper than {MAX_DEPTH}"


class _NetworkOnData(msgspec.Struct):
    """A `ShapedNetwork` as JSON has it."""

    description: Network
    input_shape: tuple[Positive, Positive, Positive]
    classes: Count


def to_record(value: Any) -> Any:
    """A network as JSON values, without those that are the default; `from_record` is the inverse.

    Values of other types are returned unchanged.
    """
    if isinstance(value, Network | Layer):
        fields = {field.name: (to_record(getattr(value, field.name)), field) for field in msgspec.structs.fields(value)}
        kind = {"type": value.kind} if isinstance(value, Layer) else {}
        return kind | {name: one for name, (one, field) in fields.items() if one != to_record(field.default)}
    if isinstance(value, tuple | list):
        return [to_record(one) for one in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def from_record(record: Any) -> Network:
    """The network of a JSON or TOML value. Raises ValueError, which says where what is wrong."""
    return _checked(_converted(record, Network))


def shaped_to_record(network: ShapedNetwork) -> dict[str, Any]:
    """The network, its input shape and number of classes as JSON values; `shaped_from_record` is the inverse."""
    return {
        "description": to_record(network.network),
        "input_shape": list(network.input_shape),
        "classes": network.classes,
    }


def shaped_from_record(record: Any, model: str) -> ShapedNetwork:
    """The network of a JSON value. model: names it in messages. Raises ValueError or UserError if it is not one."""
    found = _converted(record, _NetworkOnData)
    return _checked(found.description).for_data(found.input_shape, found.classes, model)


def _converted(record: Any, schema: type[Schema]) -> Schema:
    try:
        return msgspec.convert(record, schema)
    except RecursionError:  # Pythons differ in how deep it is, and in what it says
        raise ValueError(TOO_DEEP) from None
    except msgspec.ValidationError as error:
        # As "Expected `int`, got `float` - at `$.layers[0].stride`".
        problem, _, path = str(error).partition(" - at `$")
        raise ValueError(_explained(record, printable(problem), re.findall(r"\w+", path))) from None


def _explained(value: Any, problem: str, path: Sequence[str]) -> str:
    """The problem of a value in a record, after its place. path: keys, and numbers of items of lists."""
    where: list[str] = []
    known: Collection[str] = Network.__struct_fields__
    for key in path:
        value = value[int(key)] if key.isdecimal() else value[key]
        kind = str(value.get("type")) if isinstance(value, dict) else ""
        if key == "type":
            known = FIELDS
        elif not key.isdecimal():
            where.append("input_shape (channels, height, width)" if key == "input_shape" else key)
        elif "input_shape" not in path:
            known = FIELDS.get(kind, ())
            where.append(f"layer {int(key) + 1}" + f" ({kind})" * (kind in FIELDS))
    place = ", ".join(word for word in where if word not in ("description", "layers"))
    return f"{place}{': ' * bool(place)}{_with_hint(value, problem, path, known)}"


def _with_hint(value: Any, problem: str, path: Sequence[str], known: Collection[str]) -> str:
    """The problem, with a value that is not a table, or with the known names where a name is unknown."""
    if not isinstance(value, dict) and path[-1:] != ["type"]:
        is_table = not path or (path[-1].isdecimal() and "input_shape" not in path)
        return f"{problem} ({reprlib.repr(value)})" if is_table else problem
    names = value if isinstance(value, dict) else [str(value)]
    unknown = [name for name in names if name not in {*known, "type"}]
    if not unknown:
        return problem
    problem = problem.replace(unknown[0], f"{unknown[0]:.60}")
    return f"{problem}{did_you_mean(unknown[0], known)}; known: {', '.join(known) or 'none'}"


def _checked(network: Network) -> Network:
    if not 0 < _count(network.layers) <= MAX_LAYERS:
        raise ValueError(f"has no layers, or more than {MAX_LAYERS}")
    return network


def _count(layers: Iterable[Layer], depth: int = 0) -> int:
    """Number of layers, with those of residual layers; stops at MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    inner = [(*layer.body, *layer.shortcut) if isinstance(layer, Residual) else () for layer in layers]
    return len(inner) + sum(_count(branches, depth + 1) for branches in inner if branches)
