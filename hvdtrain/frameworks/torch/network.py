"""Networks in PyTorch, built from their descriptions; and the weights of any module."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import mask_names
from hvdtrain.frameworks.torch.batch_norm import TorchBatchNormalization
from hvdtrain.interfaces.reading import PIXEL_MAX
from hvdtrain.networks import layers as kinds
from hvdtrain.networks.description import STATISTICS, ShapedNetwork, Weights, check_weights

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
"""Layers that look rows up."""
SAVED = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
"""The types of tensors that a checkpoint can have."""


class TorchNetwork(nn.Module):
    """A network for images of its `used_pixels`; its state_dict() has canonical names and layout."""

    def __init__(self, network: ShapedNetwork) -> None:
        super().__init__()
        self._layers, self._mask_names = network.layers, mask_names(network)
        for layer in network.walk():
            match layer:
                case kinds.Conv():
                    sizes = layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding
                    self._add(layer.name, nn.Conv2d(*sizes, groups=layer.groups, bias=layer.bias))
                case kinds.Dense():
                    self._add(layer.name, nn.Linear(layer.inputs, int(layer.outputs), layer.bias))
                case kinds.BatchNorm():
                    self._add(layer.name, TorchBatchNormalization(layer.inputs, layer.momentum, layer.epsilon))

    def _add(self, name: str, module: nn.Module) -> None:
        if hasattr(self, name):
            raise UserError(
                f"the network's layer {name}: PyTorch's modules have an attribute of this name", "give it another name"
            )
        self.add_module(name, module)

    def forward(self, pixels: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        """Logits of float32 images (n, channels, height, width); masks: of dropout, none in an evaluation."""
        return self._run(self._layers, pixels, dict(zip(self._mask_names, masks, strict=bool(masks))))

    def _run(self, layers: tuple[kinds.Layer, ...], x: torch.Tensor, masks: dict[str, torch.Tensor]) -> torch.Tensor:
        while layers:
            match layers:
                case [kinds.Conv() as layer, kinds.Relu(), kinds.Pool(reduction="average", padding=0) as pool, *_] if (
                    pool.step == pool.size
                ):
                    x, layers = relu_average_pool(self._modules[layer.name](x), pool.size), layers[3:]
                case [kinds.Residual() as layer, *_]:
                    x = self._run(layer.body, x, masks) + self._run(layer.shortcut, x, masks)
                    layers = layers[1:]
                case [layer, *_]:
                    x, layers = self._apply_layer(layer, x, masks), layers[1:]
        return x

    def _apply_layer(self, layer: kinds.Layer, x: torch.Tensor, masks: dict[str, torch.Tensor]) -> torch.Tensor:
        functional = nn.functional
        match layer:
            case kinds.Conv() | kinds.Dense() | kinds.BatchNorm():
                return self._modules[layer.name](x)
            case kinds.Dropout():
                return x * masks[layer.name].to(x.dtype) if layer.name in masks else x
            case kinds.Pool(reduction="average"):
                return functional.avg_pool2d(x, layer.size, layer.step, layer.padding)
            case kinds.Pool():
                return functional.max_pool2d(x, layer.size, layer.step, layer.padding)
            case kinds.GlobalAveragePool():
                return x.mean((2, 3))
            case kinds.Relu():
                return functional.relu(x)
            case kinds.LeakyRelu():
                return functional.leaky_relu(x, layer.slope)
            case kinds.Gelu():
                return functional.gelu(x)
            case kinds.Flatten():
                return x.flatten(1)
        raise TypeError(f"{layer} is not a layer")


def scale_pixels(images: torch.Tensor, layout: torch.memory_format = torch.preserve_format) -> torch.Tensor:
    """A float32 copy of the images in this memory format; uint8 pixels are scaled to [0, 1]."""
    # empty_like() and copy_(), because contiguous(memory_format=...) does not change a tensor of one channel.
    pixels = torch.empty_like(images, dtype=torch.float32, memory_format=layout).copy_(images)
    return pixels.div_(PIXEL_MAX) if images.dtype == torch.uint8 else pixels


def relu_average_pool(images: torch.Tensor, size: int) -> torch.Tensor:
    """avg_pool2d(relu(images), size), with one pass over the images less in each direction on a CPU.

    The values and gradients are those of PyTorch's own two functions, bit for bit. images: (n, channels, height,
    width); on a CPU they are overwritten where they are not a leaf.
    """
    if images.device.type != "cpu" or torch.compiler.is_compiling() or images.is_leaf:
        return nn.functional.avg_pool2d(nn.functional.relu(images), size)
    pooled, _ = _ReluAveragePool.apply(images, size)
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


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that require gradients, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def frozen_parameters(model: nn.Module) -> frozenset[str]:
    """The names of those that do not; also further names of one that has several."""
    named = model.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in named if not parameter.requires_grad)


def unlisted_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that state_dict() leaves out (persistent=False), by name; a resumed run needs them."""
    listed = set(map(id, model.state_dict(keep_vars=True).values()))
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in listed and is_plain(buffer)}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is dense and each element has memory of its own: what `expand` returns cannot change."""
    if tensor.layout is not torch.strided:
        return False
    return all(stride or size <= 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _plain_buffers(model: nn.Module) -> list[torch.Tensor]:
    return list(filter(is_plain, model.buffers()))


def placed_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by all of their places; a module in several places has one."""
    places: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        tensors = {**module._parameters, **module._buffers}
        places |= {_place(name, key): tensor for key, tensor in tensors.items() if tensor is not None}
    return places


def _place(module: str, key: str) -> str:
    """The name of what a module has by this key; the name of the model itself is empty."""
    return f"{module}.{key}" if module else key


def attribute_numbers(model: nn.Module) -> dict[str, int | float]:
    """Attributes of all modules that are numbers, by name."""
    return {
        _place(name, key): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if type(value) in (int, float)
    }


@contextlib.contextmanager
def unchanged(model: nn.Module, with_attributes: bool = True) -> Iterator[None]:
    """What happens inside leaves tensors of the model, its attributes, and generators as they were."""
    parameters, modules = list(model.parameters()), list(model.modules())
    gradients = [parameter.grad for parameter in parameters]
    values = [(tensor, tensor.detach().clone()) for tensor in (*parameters, *_plain_buffers(model))]
    named = [(module._buffers, dict(module._buffers)) for module in modules]
    named += [(vars(module), dict(vars(module))) for module in modules if with_attributes]
    states, devices = (random.getstate(), np.random.get_state()), {p.device for p in parameters if p.is_cuda}
    for parameter in parameters:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for current, before in reversed(named):
            _restore(current, before)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for tensor, value in values:
            if tensor.shape == value.shape:
                tensor.detach().copy_(value)
            else:  # it was resized in place
                tensor.data = value


def _restore(current: dict[str, Any], before: dict[str, Any]) -> None:
    """Give these names the objects that they had; others lose their names."""
    for name in current.keys() - before.keys():
        del current[name]
    for name, value in before.items():
        if name not in current or current[name] is not value:  # TorchScript's dictionaries have no get()
            current[name] = value


def why_not_saved(model: nn.Module) -> tuple[str, str]:
    """What of a model cannot be in a checkpoint, after "the model's", and what to do; empty texts if all can be."""
    state = model.state_dict(keep_vars=True) | unlisted_buffers(model)
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            return f"state {name} is of type {type(value).__name__}", "let get_extra_state() return a tensor"
        if is_lazy(value):
            return f"parameter {name} has no values yet", "call the model with some rows first, or give it its shape"
        if value.layout is not torch.strided or value.dtype not in SAVED:
            kind = f"{value.dtype} in layout {value.layout}".replace("torch.", "")
            return f"tensor {name} is {kind}", f"use a dense one of {', '.join(map(str, SAVED))}".replace("torch.", "")
    for name, value in trained_parameters(model).items():  # one that has another name in it is the same tensor
        if name not in state and value.data_ptr() not in {one.data_ptr() for one in state.values()}:
            return f"state_dict() leaves out {name}, which is trained", "let it be there, or set requires_grad_(False)"
    return "", ""


def limited_rows(model: nn.Module) -> str:
    """The weight of a layer that shortens the rows that it looks up, to its max_norm; empty if there is none."""
    layers = ((name, module) for name, module in model.named_modules() if isinstance(module, EMBEDDINGS))
    return next((_place(name, "weight") for name, layer in layers if layer.max_norm is not None), "")


def sparse_parameters(model: nn.Module) -> set[int]:
    """The identities of the parameters of layers that say that their gradients are sparse."""
    return {id(module.weight) for module in model.modules() if isinstance(module, EMBEDDINGS) and module.sparse}


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or complex numbers as two real ones in one more dimension, where possible in the same memory."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def from_real(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `as_real` has made real, in its type."""
    return (torch.complex(*values.unbind(-1)) if dtype.is_complex else values).to(dtype)


def laid_out_as(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The contiguous values in the strides of a tensor of their shape: fused optimizers compare none."""
    return values if tensor.is_contiguous() else torch.empty_like(tensor, dtype=values.dtype).copy_(values)


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as an array, on a CPU in the same memory; but bfloat16, which NumPy lacks, as float32."""
    values = tensor.detach().resolve_conj().resolve_neg()
    return (values.float() if values.dtype is torch.bfloat16 else values).cpu().numpy()


def module_weights(model: nn.Module) -> Weights:
    """Copies of parameters and buffers, by name; bfloat16, which NumPy lacks, as float32."""
    tensors = model.state_dict() | unlisted_buffers(model)
    # NumPy gets the copy: a tensor whose memory it has had can no longer be resized.
    return {name: host_array(value.detach().to("cpu", copy=True)) for name, value in tensors.items()}


def buffer_arrays(model: nn.Module, others: Sequence[torch.Tensor] = ()) -> list[np.ndarray]:
    """Copies of all buffers and `others`, float64 or int64, which have all smaller types; complex numbers are two."""
    real = [as_real(tensor.detach()) for tensor in (*_plain_buffers(model), *others)]
    types = (torch.float64 if buffer.is_floating_point() else torch.int64 for buffer in real)
    return [buffer.to("cpu", kind, copy=True).numpy() for buffer, kind in zip(real, types, strict=True)]


def load_buffers(model: nn.Module, arrays: list[np.ndarray], others: Sequence[torch.Tensor] = ()) -> None:
    """Set all buffers, and the other tensors, to what `buffer_arrays` returned."""
    for tensor, array in zip((*_plain_buffers(model), *others), arrays, strict=True):
        as_real(tensor.detach()).copy_(torch.from_numpy(array))


def load_module(model: nn.Module, weights: Weights) -> None:
    """Set parameters and buffers. Raises ValueError if names or shapes of parameters differ."""
    _resize_buffers(model, weights)
    unlisted = unlisted_buffers(model)
    check_weights(weights, {name: value.shape for name, value in (model.state_dict() | unlisted).items()})
    # Without a copy of all at once; PyTorch warns of arrays that it may not write to, although it only reads here.
    tensors = {name: torch.from_numpy(np.require(value, requirements="W")) for name, value in weights.items()}
    for name, buffer in unlisted.items():
        buffer.copy_(tensors.pop(name))
    model.load_state_dict(tensors)


def _resize_buffers(model: nn.Module, weights: Weights) -> None:
    """Make room for buffers that a model makes or replaces when it is called, such as masks and tables of positions.

    Also for those whose elements share memory, as from `expand`, which nothing can be written to.
    """
    for name, module in model.named_modules():
        for key, buffer in module._buffers.items():
            value = weights.get(_place(name, key))
            if value is None:
                continue
            if buffer is None:
                module._buffers[key] = torch.from_numpy(value.copy()).to(next(model.parameters()).device)
            elif buffer.shape != value.shape or not is_plain(buffer):
                module._buffers[key] = buffer.new_empty(value.shape)


def empty_buffers(model: nn.Module) -> frozenset[str]:
    """Names of the buffers that are None so far."""
    return frozenset(
        _place(name, key)
        for name, module in model.named_modules(remove_duplicate=False)
        for key, buffer in module._buffers.items()
        if buffer is None
    )


def buffers_by_rank(model: nn.Module, synchronized: bool) -> frozenset[str]:
    """Names of the buffers, of which each rank has its own unless they are synchronized."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = (model.state_dict().keys() - parameters) | unlisted_buffers(model).keys() | empty_buffers(model)
    return frozenset(name for name in buffers if not (synchronized and name.endswith(STATISTICS)))
