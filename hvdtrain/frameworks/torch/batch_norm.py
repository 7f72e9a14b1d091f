"""Batch normalization in PyTorch: over the rows of this device, or over those of all ranks (--batch-norm sync).

torch.nn.SyncBatchNorm and Horovod's SyncBatchNorm run on GPUs only, and count rows without weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.interfaces.strategy import Group


class TorchBatchNormalization(nn.Module):
    """Normalizes each channel of (n, channels, ...); its parameters and buffers have canonical names."""

    weight: torch.Tensor
    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, channels: int, momentum: float, epsilon: float) -> None:
        super().__init__()
        self._momentum, self._epsilon = momentum, epsilon
        self.group: Group | None = None
        """The ranks over which training normalizes; None for this device's rows."""
        self.real_rows: torch.Tensor | None = None
        """Which rows have a weight, float32 (n,), where `group` is set."""
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.group:
            return self._over_ranks(x.float(), self.group).to(x.dtype)
        if self.training and x.numel() == x.shape[1]:
            return self._of_one_value(x)
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self._momentum, self._epsilon
        )

    def _of_one_value(self, x: torch.Tensor) -> torch.Tensor:
        """As in the other frameworks: the normalized value is 0, and so is the variance. PyTorch's own refuses it."""
        with torch.no_grad():
            self.running_mean.lerp_(x.float().flatten(), self._momentum)
            self.running_var.mul_(1 - self._momentum)
        return ((x - x) * _of_channels(self.weight, x) + _of_channels(self.bias, x)).to(x.dtype)

    def _over_ranks(self, x: torch.Tensor, group: Group) -> torch.Tensor:
        y, mean, variance, count = _NormalizeOverRanks.apply(
            x, self.weight, self.bias, self.real_rows, group, self._epsilon
        )
        with torch.no_grad():
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean, self._momentum)
            self.running_var.lerp_(unbiased, self._momentum)
        return y


class _NormalizeOverRanks(torch.autograd.Function):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with mean and variance of the rows of all ranks.

    With g the gradient of y times the weight, and x^ the normalized x, the gradient of x is (g - mean(g) -
    x^ mean(g x^)) / sqrt(variance + epsilon), where the means are over all ranks (Ioffe and Szegedy, 2015).

    The gradients of weight and bias are the sums over all ranks divided by the number of ranks. The average of each
    rank's own sums is the same up to their rounding to float32, which depends on how the rows are divided.
    """

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, real: torch.Tensor, group: Group,
        epsilon: float,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        real = real.view(-1, *(1,) * (x.dim() - 1))
        count, mean, variance = _moments_over_ranks(x, real, group)
        scale = (variance + epsilon).rsqrt()
        normalized = (x - _of_channels(mean, x)) * _of_channels(scale, x)
        context.group, context.count = group, count
        context.save_for_backward(normalized, weight, scale, real)
        y = normalized * _of_channels(weight, x) + _of_channels(bias, x)
        context.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient = gradients[0]
        normalized, weight, scale, real = context.saved_tensors
        local_sums = _channel_sum(gradient), _channel_sum(gradient * normalized)
        of_bias, of_weight = _sum_over_ranks(context.group, *local_sums)
        mean, mean_normalized = ((total / context.count).to(gradient.dtype) for total in (of_bias, of_weight))
        of_x = gradient - real * (_of_channels(mean, gradient) + normalized * _of_channels(mean_normalized, gradient))
        of_x = of_x * _of_channels(weight * scale, gradient)
        of_parameters = ((total / context.group.size).to(weight.dtype) for total in (of_weight, of_bias))
        return of_x, *of_parameters, None, None, None


def _moments_over_ranks(x: torch.Tensor, real: torch.Tensor, group: Group) -> tuple[torch.Tensor, ...]:
    """Number of values of each channel, their mean, and their biased variance, over the real rows of all ranks.

    The squares of float32 values are exact in float64, so the sums hardly depend on how the rows are divided.
    """
    local_count = (real.sum() * x[0, 0].numel()).double()
    real_x = (x * real).double()
    local_total = _channel_sum(real_x)
    count, total, squares = _sum_over_ranks(group, local_count, local_total, _channel_sum(real_x.square_()))
    mean = total / count
    return count, mean.to(x.dtype), (squares / count - mean.square()).to(x.dtype)


def _channel_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over all but the channels, float64 (channels,)."""
    return x.sum([axis for axis in range(x.dim()) if axis != 1], dtype=torch.float64)


def _of_channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Values of channels, in a shape that x is multiplied with."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _sum_over_ranks(group: Group, *values: torch.Tensor) -> list[torch.Tensor]:
    """The sums over all ranks of float64 tensors, by one collective."""
    flat = torch.cat([value.double().flatten() for value in values])
    total = torch.from_numpy(np.asarray(group.sum(flat.cpu().numpy()))).to(flat.device)
    return [
        part.view(value.shape) for part, value in zip(total.split([v.numel() for v in values]), values, strict=True)
    ]
