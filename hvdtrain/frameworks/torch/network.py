"""Networks in PyTorch, built from their descriptions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from hvdtrain.interfaces import PIXEL_MAX
from hvdtrain.networks.description import Conv, Dense, Flatten, Layer, Network, Pool, Relu


def build_network(network: Network) -> nn.Sequential:
    """The network for images of its `used_pixels`; its state_dict() has canonical names and layout."""
    layers, built = list(network.layers), OrderedDict[str, nn.Module]()
    while layers:
        match layers:
            case [Conv() as layer, Relu(), Pool(kind="average") as pool, *rest]:
                built[layer.name] = _build_layer(layer)
                built[f"layer{len(built)}"] = ReluAveragePool(pool.size)
            case [layer, *rest]:
                built[layer.name if isinstance(layer, Conv | Dense) else f"layer{len(built)}"] = _build_layer(layer)
        layers = rest
    return nn.Sequential(built)


def _build_layer(layer: Layer) -> nn.Module:
    match layer:
        case Conv():
            return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel)
        case Dense():
            return nn.Linear(layer.inputs, layer.outputs)
        case Pool(kind="average"):
            return nn.AvgPool2d(layer.size)
        case Pool():
            return nn.MaxPool2d(layer.size)
        case Relu():
            return nn.ReLU()
        case Flatten():
            return nn.Flatten()


def scale_pixels(images: torch.Tensor, layout: torch.memory_format = torch.preserve_format) -> torch.Tensor:
    """A float32 copy of the images in this memory format; uint8 pixels are scaled to [0, 1]."""
    # empty_like() and copy_(), because contiguous(memory_format=...) does not change a tensor of one channel.
    pixels = torch.empty_like(images, dtype=torch.float32, memory_format=layout).copy_(images)
    return pixels.div_(PIXEL_MAX) if images.dtype == torch.uint8 else pixels


class ReluAveragePool(nn.Module):
    """AvgPool2d(size) of relu(images), with one pass over the images less in each direction on a CPU.

    The values and gradients are those of PyTorch's own two layers, bit for bit.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: (n, channels, height, width); on a CPU they are overwritten where they are not a leaf."""
        if images.device.type != "cpu" or torch.compiler.is_compiling() or images.is_leaf:
            return nn.functional.avg_pool2d(nn.functional.relu(images), self.size)
        pooled, _ = _ReluAveragePool.apply(images, self.size)
        return pooled


class _ReluAveragePool(torch.autograd.Function):
    """Overwrites the output of a convolution, which no backward pass needs; copies gradients to the pixels of windows.

    A gradient passes through relu in place, in the array of those copies.
    """

    @staticmethod
    def forward(context: Any, images: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        images.relu_()
        context.mark_dirty(images)
        context.set_materialize_grads(False)
        context.size = size
        context.save_for_backward(images)
        return nn.functional.avg_pool2d(images, size), images

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        (images,), gradient, size = context.saved_tensors, gradients[0], context.size
        if gradient is None:
            return None, None
        height, width = gradient.shape[2:]
        covered = images.shape[2:] == (height * size, width * size)
        result = torch.empty_like(images) if covered else torch.zeros_like(images)
        pixels = result[:, :, : height * size, : width * size]
        windows = pixels.unflatten(3, (width, size)).unflatten(2, (height, size))
        windows.copy_((gradient / size**2)[:, :, :, None, :, None])
        return torch.ops.aten.threshold_backward.grad_input(result, images, 0, grad_input=result), None
