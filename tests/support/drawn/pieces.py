"""Pieces of models of all frameworks: layers that change their weight or other state when they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from support.drawn_models import BATCH, EVALUATED, FEATURES, ODD, STATE, Piece, Pieces


class Framework(NamedTuple):
    """How a framework does what these pieces do. A layer has a dense one, `layer`, and arrays by their names."""

    layer: Callable[..., Any]
    """From a function of the layer, its inputs and whether it trains, and from arrays."""
    ones: Callable[[tuple[int, ...], str], Any]
    """An array of a type."""
    get: Callable[[Any, str], Any]
    """The array of a layer that has this name, or its `weight`."""
    put: Callable[[Any, str, Any], object]
    paused: Callable[[], AbstractContextManager[Any]]
    """In which nothing is recorded for gradients."""
    mean: Callable[[Any], Any]
    """Over rows, as one row."""
    reshape: Callable[[Any, tuple[int, ...]], Any]
    norm: Callable[[Any], Any]
    clip: Callable[[Any], Any]
    """Between -0.3 and 0.3."""
    noise: Callable[[Any], Any]
    """Numbers of a normal distribution in the shape of an array."""
    as_float: Callable[[Any], Any]


def changing(of: Framework, change: Callable[[Any, Any], Any], always: bool = False) -> Callable[[], Any]:
    """A layer whose weight becomes what this makes of it and of the inputs, in training or always."""

    def call(layer: Any, x: Any, training: bool) -> Any:
        if training or always:
            with of.paused():
                of.put(layer, "weight", change(of.get(layer, "weight"), x))
        return layer.layer(x)

    return lambda: of.layer(call)


def centered(of: Framework, always: bool) -> Callable[[], Any]:
    def call(layer: Any, x: Any, training: bool) -> Any:
        if training or always:
            with of.paused():
                of.put(layer, "mean", 0.9 * of.get(layer, "mean") + 0.1 * of.mean(x))
        return layer.layer(x - of.get(layer, "mean"))

    return lambda: of.layer(call, mean=0 * of.ones((1, FEATURES), "float32"))


def kept(of: Framework, kind: str, changes: bool) -> Callable[[], Any]:
    """A layer whose inputs are multiplied by an array of a type, which changes in training."""

    def call(layer: Any, x: Any, training: bool) -> Any:
        if changes and training:
            with of.paused():
                array = of.get(layer, "kept")
                of.put(layer, "kept", ~array if kind == "bool" else array + 1)
        return layer.layer(x * (of.as_float(of.get(layer, "kept")) + 1) / 4)

    return lambda: of.layer(call, kept=of.ones((1, FEATURES), kind))


def common(of: Framework, dtypes: Iterable[str], refused: bool) -> Pieces:
    """These pieces. refused: whether arrays of other types may be."""

    def fixed(layer: Any, x: Any, training: bool) -> Any:
        return layer.layer(x + 0.1 * of.mean(of.reshape(x, (BATCH, FEATURES))))

    def normalized(weight: Any, x: Any) -> Any:
        return weight / of.norm(weight)

    def clipped(weight: Any, x: Any) -> Any:
        return of.clip(weight)

    return {
        "fixed batch": STATE(lambda: of.layer(fixed), fixed=True),
        "normalized weight": ODD(changing(of, normalized)),
        "always normalized weight": ODD(changing(of, normalized, always=True), in_evaluation=True),
        "clipped weight": ODD(changing(of, clipped)),
        "always clipped weight": ODD(changing(of, clipped, always=True), in_evaluation=True),
        "decayed weight": STATE(changing(of, lambda weight, x: 0.9 * weight)),
        "weight by rows": STATE(changing(of, lambda weight, x: weight + of.mean(x) / 100)),
        "weight with noise": STATE(changing(of, lambda weight, x: weight + of.noise(weight) / 100), draws=True),
        "centered in training": STATE(centered(of, False), local=True),
        "centered": EVALUATED(centered(of, True), local=True),
        **{f"kept {name}": Piece(kept(of, name, False), refused=refused) for name in dtypes},
        **{f"changing {name}": STATE(kept(of, name, True)) for name in dtypes},
    }
