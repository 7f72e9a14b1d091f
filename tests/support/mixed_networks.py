"""Small networks of all kinds of layers, for --model mixed_networks.py:NAME."""

from __future__ import annotations

from collections.abc import Iterable

from hvdtrain import Network
from hvdtrain.networks.layers import (
    CLASSES,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Gelu,
    GlobalAveragePool,
    Layer,
    LeakyRelu,
    Pool,
    Relu,
    Residual,
)


def without(kind: type, layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """The layers, and those of residual branches, that are not of this kind."""
    kept = [layer for layer in layers if not isinstance(layer, kind)]
    return tuple(
        Residual(without(kind, layer.body), without(kind, layer.shortcut)) if isinstance(layer, Residual) else layer
        for layer in kept
    )


MIXED = Network(
    (
        Conv(8, 5, stride=2, padding=1, bias=False, name="stem"),
        BatchNorm(momentum=0.2),
        LeakyRelu(0.1),
        Pool("max", 3, stride=2, padding=1),
        Residual(
            (
                Conv(8, 3, padding=1, groups=4),
                BatchNorm(),
                Gelu(),
                Dropout(0.25),
                Conv(12, 3, stride=2, padding=1, bias=False),
                BatchNorm(initial=0.5, epsilon=1e-3),
            ),
            (Conv(12, 1, stride=2, bias=False), BatchNorm()),
        ),
        Relu(),
        Residual((Conv(12, 3, padding=1, groups=12), Relu(), Pool("average", 3, stride=1, padding=1))),
        GlobalAveragePool(),
        Dense(16, bias=False),
        BatchNorm(),
        Relu(),
        Dropout(0.5),
        Dense(CLASSES, name="last"),
    )
)
"""All kinds of layers but Flatten; batch normalization of images and of features."""
WITHOUT_NORM = Network(without(BatchNorm, MIXED.layers))
"""The same weights for any number of ranks and devices without --batch-norm sync."""
WITHOUT_DROPOUT = Network(without(Dropout, MIXED.layers))
FLATTENED = Network((Pool("average", 4), Residual((Conv(1, 3, padding=1), Relu())), Flatten(), Dense(CLASSES)))
"""A dense layer after a flatten of several rows and columns of pixels."""
NETWORKS = {"MIXED": MIXED, "WITHOUT_NORM": WITHOUT_NORM, "WITHOUT_DROPOUT": WITHOUT_DROPOUT, "FLATTENED": FLATTENED}
