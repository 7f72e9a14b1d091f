"""What training changes in MXNet besides parameters, such as running statistics, and --batch-norm sync over ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from hvdtrain.frameworks.mxnet.network import Parameters, copy_into, load_array, parameter_weights
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.layers import BatchNorm


class BlockStatistics:
    """The parameters of a block that are not trained: running statistics, and those that are frozen."""

    def __init__(self, parameters: Parameters, context: mx.Context) -> None:
        self.parameters, self._context = dict(parameters), context

    def read(self) -> list[np.ndarray]:
        return [*parameter_weights(self.parameters, self._context).values()] if self.parameters else []

    def write(self, arrays: list[np.ndarray]) -> None:
        for parameter, array in zip(self.parameters.values(), arrays, strict=True):
            copy_into(parameter.data(self._context), array)


class RunningStatistics:
    """The running mean and unbiased variance of each layer.

    MXNet's own average the biased variance. `Forward` leaves those of the batch in their place.
    """

    def __init__(self, network: ShapedNetwork) -> None:
        self._momentum = {layer.name: layer.momentum for layer in network.batch_norms}
        self._pixels = {layer.name: math.prod(layer.shape[1:]) for layer in network.batch_norms}
        self.arrays = {name: np.zeros(shape, np.float32) for name, shape in network.statistics()}
        """By canonical name."""

    def load(self, weights: Weights) -> None:
        """Set all of them."""
        self.arrays = {name: np.array(weights[name]) for name in self.arrays}

    def read(self) -> list[np.ndarray]:
        """Copies of all of them."""
        return [array.copy() for array in self.arrays.values()]

    def write(self, arrays: list[np.ndarray]) -> None:
        """Set all of them, in the order of `read`."""
        self.arrays = {name: array.copy() for name, array in zip(self.arrays, arrays, strict=True)}

    def copies(self, context: mx.Context) -> dict[str, nd.NDArray]:
        """The arrays on a device."""
        return {name: load_array(array, context) for name, array in self.arrays.items()}

    def update_from_batch(self, batch: Mapping[str, nd.NDArray], rows: int) -> None:
        """Take what a training step on that many rows left: mean and biased variance, by canonical name."""
        if self._pixels:
            nd.waitall()  # the engine does not know that the backward pass of a graph writes them
        for layer, pixels in self._pixels.items():
            mean, variance = (batch[f"{layer}.{kind}"].asnumpy() for kind in ("running_mean", "running_var"))
            self.update(layer, mean, variance, rows * pixels)

    def update(self, layer: str, mean: np.ndarray, variance: np.ndarray, count: float) -> None:
        """Take mean and biased variance of `count` values."""
        momentum = np.float32(self._momentum[layer])
        for kind, batch in (("mean", mean), ("var", variance * np.float32(count / max(count - 1, 1)))):
            array = self.arrays[f"{layer}.running_{kind}"]
            array[:] = (1 - momentum) * array + momentum * batch


Statistics = BlockStatistics | RunningStatistics
"""What the forward and backward passes of a model change besides gradients."""


class NormalizationOverRanks:
    """Normalizes over the rows of all ranks, for one step after another; a `Normalize` of `Forward`.

    The engine may run independent parts of a backward pass at the same time and in any order, but ranks must sum in
    the same order. So each layer gets a value of the layer before it and passes one on, which the loss contains times
    zero: a layer's backward pass waits for that of the layer after it.
    """

    def __init__(self, group: Group, statistics: RunningStatistics) -> None:
        self._group, self._statistics = group, statistics
        self.last: nd.NDArray
        """The value of the last layer so far, 0."""

    def begin(self, weights: np.ndarray, context: mx.Context) -> None:
        """Begin a step, whose rows have these weights."""
        self.real_rows = load_array((weights > 0).astype(np.float64), context)
        self.last = nd.zeros((1,), context)

    def __call__(
        self, layer: BatchNorm, x: nd.NDArray, weight: nd.NDArray, bias: nd.NDArray, *_: nd.NDArray
    ) -> nd.NDArray:
        normalize = _NormalizeOverRanks(self._group, self.real_rows, layer.epsilon)
        # First those that have gradients: MXNet's Function does not write any after one that is not needed.
        y, self.last = normalize(weight, bias, x.astype("float32", copy=False), self.last)
        self._statistics.update(layer.name, *normalize.moments)
        return y


class _NormalizeOverRanks(autograd.Function):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias; mean and variance of the real rows of all ranks.

    torch/batch_norm.py has the formulas of the gradients.
    """

    def __init__(self, group: Group, real_rows: nd.NDArray, epsilon: float) -> None:
        super().__init__()
        self._group, self._real_rows, self._epsilon = group, real_rows, epsilon
        self.moments: tuple[np.ndarray, np.ndarray, float]
        """Mean, biased variance, and the number of values that they are of."""

    def forward(
        self, weight: nd.NDArray, bias: nd.NDArray, x: nd.NDArray, before: nd.NDArray
    ) -> tuple[nd.NDArray, nd.NDArray]:
        real = self._real_rows.reshape((-1, *(1,) * (x.ndim - 1)))
        mean, variance, self._count = self.moments = self._moments(x.astype("float64"), real)
        mean, variance = (load_array(moment, x.context) for moment in (mean, variance))
        scale = 1 / nd.sqrt(variance + self._epsilon)
        self._real, self._scale, self._weight = real.astype("float32"), scale, weight
        self._normalized = nd.broadcast_mul(nd.broadcast_sub(x, _of_channels(mean, x)), _of_channels(scale, x))
        y = nd.broadcast_add(nd.broadcast_mul(self._normalized, _of_channels(weight, x)), _of_channels(bias, x))
        return y, before + 0

    def _moments(self, x: nd.NDArray, real: nd.NDArray) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean of each channel over all ranks, its biased variance, and the number of its values."""
        real_x = nd.broadcast_mul(x, real)
        local_count = real.sum() * math.prod(x.shape[2:])
        (count,), total, squares = self._sum(local_count, _channel_sum(real_x), _channel_sum(real_x * x))
        mean = total / count
        return mean.astype(np.float32), (squares / count - mean**2).astype(np.float32), float(count)

    def backward(
        self, gradient: nd.NDArray, of_next: nd.NDArray
    ) -> tuple[nd.NDArray, nd.NDArray, nd.NDArray, nd.NDArray]:
        normalized = self._normalized
        precise = gradient.astype("float64")
        totals = self._sum(_channel_sum(precise), _channel_sum(precise * normalized.astype("float64")))
        mean, mean_normalized = (_of_channels(_quotient(total, self._count, gradient), gradient) for total in totals)
        shared = nd.broadcast_mul(nd.broadcast_add(nd.broadcast_mul(normalized, mean_normalized), mean), self._real)
        of_x = nd.broadcast_mul(gradient - shared, _of_channels(self._weight * self._scale, gradient))
        of_bias, of_weight = (_quotient(total, self._group.size, gradient) for total in totals)
        gradients = of_weight, of_bias, of_x, of_next + 0
        for result in gradients:
            result.wait_to_read()  # MXNet passes them on as they are when this function returns
        return gradients

    def _sum(self, *values: nd.NDArray) -> list[np.ndarray]:
        """The sums over all ranks, float64, by one collective."""
        arrays = [value.asnumpy().ravel() for value in values]
        total = np.asarray(self._group.sum(np.concatenate(arrays)))
        return np.split(total, np.cumsum([len(array) for array in arrays])[:-1])


def _channel_sum(x: nd.NDArray) -> nd.NDArray:
    """Sum over all but the channels, (channels,)."""
    return x.sum(axis=1, exclude=True)


def _quotient(total: np.ndarray, count: float, like: nd.NDArray) -> nd.NDArray:
    """Float32 total / count, on the device of `like`."""
    return load_array((total / count).astype(np.float32), like.context)


def _of_channels(values: nd.NDArray, x: nd.NDArray) -> nd.NDArray:
    """Values of channels, in a shape that x is multiplied with."""
    return values.reshape((1, -1, *(1,) * (x.ndim - 2)))
