"""The arrays of a batch, as the learners of all frameworks take them."""

from __future__ import annotations

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.interfaces import Batch
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.random_numbers import draw_masks


def network_rows(network: ShapedNetwork, seed: int, batch: Batch) -> tuple[np.ndarray, ...]:
    """Weights, labels, images, and the masks of dropout in the order of the layers; all have as many rows."""
    images, labels = batch.arrays
    return batch.weights, labels, images, *draw_masks(network, seed, batch.step, batch.rows)


def mask_names(network: ShapedNetwork) -> list[str]:
    """The layers that the masks of `network_rows` belong to."""
    return [layer.name for layer in network.dropouts]


def statistics_by_rank(network: ShapedNetwork, config: Config) -> frozenset[str]:
    """The running statistics of which each rank has its own; see `Learner.local_weights`."""
    return frozenset(name for name, _ in network.statistics() if config.batch_norm == "local")
