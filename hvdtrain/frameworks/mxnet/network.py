"""Networks in MXNet: one translation of a description for Gluon, Module and plain arrays; and parameters of blocks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import mask_names
from hvdtrain.frameworks.patterns import freeze
from hvdtrain.interfaces.reading import PIXEL_MAX
from hvdtrain.networks import layers as kinds
from hvdtrain.networks.description import ShapedNetwork, Weights, check_weights
from hvdtrain.tasks.progress import asks

Parameters = dict[str, gluon.Parameter]
"""Gluon's parameters by canonical name."""
NORMALIZING = ("weight", "bias", "running_mean", "running_var")
"""Kinds of arrays of a `BatchNorm`."""
Normalize = Callable[..., Any]
"""normalize(layer, x, weight, bias, running_mean, running_var): the output of a `BatchNorm`."""

CPU_CHANNELS = {"fp32": 8, "bf16": 16}
"""By precision: on the CPU, the number of channels that a convolution computes is a multiple of this.

oneDNN has direct convolutions and fast pooling only for arrays of whole vectors of channels. It would pad others by
itself, but MXNet refuses arrays that are larger than their shapes, and gets a matrix product for each image. CPU time
of a step with batch 128, with these multiples and without: cifar_lenet 12 and 22 ms, lenet 39 and 42 ms (AVX-512), 13
and 31, 39 and 54 ms (limited to AVX2), 19 and 24, 31 and 40 ms (bf16). For fp32, 16 was slower than 8: AVX-512's larger
vectors do not make up for the zeros.
"""


class Forward:
    """Builds the logits of images (n, channels, height, width), layer by layer.

    F: `mx.nd` or `mx.sym`, to which all arrays belong. parameters: parameters and running statistics by canonical name;
    MXNet's own layout is the canonical one. masks: of dropout, by layer; empty in an evaluation. multiple: convolutions
    compute additional channels, whose weights are zero, so that the number is a multiple of this; the logits do not
    depend on it, up to rounding. normalize: replaces MXNet's batch normalization in training.
    """

    def __init__(
        self,
        F: Any,
        network: ShapedNetwork,
        parameters: Mapping[str, Any],
        masks: Mapping[str, Any] | None = None,
        multiple: int = 1,
        normalize: Normalize | None = None,
    ) -> None:
        self._F, self._network, self._parameters, self._masks = F, network, parameters, masks or {}
        self._multiple, self._normalize = multiple, normalize

    def __call__(self, images: Any) -> Any:
        height, width = self._network.used_pixels
        return self._run(self._network.layers, self._F.slice(images, (None, None, 0, 0), (None, None, height, width)))

    def _run(self, layers: tuple[kinds.Layer, ...], x: Any) -> Any:
        channels = added = 0  # of the convolution before, and those that x has in addition
        for layer in layers:
            keeps_added = isinstance(layer, kinds.Pool | kinds.Relu) or (
                isinstance(layer, kinds.Conv) and layer.groups == 1
            )
            if added and not keeps_added:
                x, added = self._F.slice_axis(x, axis=1, begin=0, end=channels), 0
            if isinstance(layer, kinds.Conv):
                x, added = self._convolve(layer, x, added)
                channels = layer.outputs
            elif isinstance(layer, kinds.Residual):
                x = self._run(layer.body, x) + self._run(layer.shortcut, x)
            else:
                x = self._apply(layer, x)
        return self._F.slice_axis(x, axis=1, begin=0, end=channels) if added else x

    def _convolve(self, layer: kinds.Conv, x: Any, added: int) -> tuple[Any, int]:
        """The convolution of an input with `added` channels more than the layer has, and those of the output."""
        F, more = self._F, -layer.outputs % self._multiple if layer.groups == 1 else 0
        weight = append_zeros(F, append_zeros(F, self._parameters[f"{layer.name}.weight"], 1, added), 0, more)
        bias = [append_zeros(F, self._parameters[f"{layer.name}.bias"], 0, more)] if layer.bias else []
        k, s, p = layer.window
        x = F.Convolution(
            x, weight, *bias, kernel=(k, k), stride=(s, s), pad=(p, p), num_filter=layer.outputs + more,
            num_group=layer.groups, no_bias=not layer.bias,
        )  # fmt: skip
        return x, more

    def _apply(self, layer: kinds.Layer, x: Any) -> Any:
        F = self._F
        match layer:
            case kinds.Dense(name=name):
                bias = [self._parameters[f"{name}.bias"]] if layer.bias else []
                return F.FullyConnected(
                    x, self._parameters[f"{name}.weight"], *bias, num_hidden=layer.outputs, no_bias=not layer.bias
                )
            case kinds.BatchNorm():
                return self._normalized(layer, x)
            case kinds.Dropout():
                return x * self._masks[layer.name] if layer.name in self._masks else x
            case kinds.Pool(window=(k, s, p)):
                kind = "avg" if layer.reduction == "average" else "max"
                return F.Pooling(x, kernel=(k, k), stride=(s, s), pad=(p, p), pool_type=kind)
            case kinds.GlobalAveragePool():
                return F.flatten(F.Pooling(x, kernel=(1, 1), global_pool=True, pool_type="avg"))
            case kinds.Relu():
                return F.Activation(x, act_type="relu")
            case kinds.LeakyRelu():
                return F.LeakyReLU(x, act_type="leaky", slope=layer.slope)
            case kinds.Gelu():
                return F.LeakyReLU(x, act_type="gelu")
            case kinds.Flatten():
                return F.flatten(x)
        raise TypeError(f"{layer} is not a layer")

    def _normalized(self, layer: kinds.BatchNorm, x: Any) -> Any:
        arrays = [self._parameters[f"{layer.name}.{kind}"] for kind in NORMALIZING]
        if self._normalize:
            return self._normalize(layer, x, *arrays)
        # Without momentum, a training step leaves the batch's own mean and biased variance in the statistics, from
        # which `Statistics` computes the running ones.
        return self._F.BatchNorm(x, *arrays, eps=layer.epsilon, momentum=0, fix_gamma=False)


def append_zeros(F: Any, values: Any, axis: int, count: int) -> Any:
    """`values`, followed by `count` zeros along `axis`."""
    if count == 0:
        return values
    # Not F.zeros: MXNet's bf16 mode fails on operators without input.
    first = F.slice_axis(values, axis=axis, begin=0, end=1)
    return F.concat(values, F.zeros_like(F.broadcast_axis(first, axis=axis, size=count)), dim=axis)


def channel_multiple(device: str, precision: str) -> int:
    """`forward`'s multiple on `cpu` or `gpu`."""
    return CPU_CHANNELS[precision] if device == "cpu" else 1


def cross_entropy(F: Any, logits: Any, labels: Any) -> Any:
    """Loss of each row, (n,); labels are float32, MXNet's convention."""
    return -F.pick(F.log_softmax(logits), labels)


def row_losses(F: Any, network: ShapedNetwork, outputs: Any, labels: Any) -> Any:
    """Loss of each row of a network as data, (n,); labels are float32."""
    if network.is_regression:
        return F.square(F.reshape(outputs, (-1,)) - labels)
    return cross_entropy(F, outputs, labels)


def mask_variable(layer: str) -> str:
    """The variable of a layer's dropout mask, with a name of its own."""
    return f"{layer}_mask"


def scale_pixels(images: np.ndarray) -> np.ndarray:
    """Images as float32; uint8 pixels are scaled to [0, 1]. In NumPy, ten times faster than in MXNet on the CPU."""
    return np.divide(images, PIXEL_MAX, dtype=np.float32) if images.dtype == np.uint8 else images


def build_cache(block: gluon.HybridBlock, *arrays: Any, build: Any = gluon.HybridBlock._build_cache) -> None:
    """Make a graph of a block, unless it would keep numbers that the block has asked for."""
    if asks(build, block, *arrays):
        problem = f"{type(block).__name__} asks for hvdtrain.progress(), which its graph would keep as it is now"
        raise UserError(problem, "leave out hybridize(), or ask in losses() or a block that is not hybridized")


gluon.HybridBlock._build_cache = build_cache


class GluonNetwork(nn.HybridBlock):
    """A network as a Gluon block; all shapes are known, so its parameters exist before the first batch.

    multiple: that of `Forward`.
    """

    def __init__(self, network: ShapedNetwork, multiple: int = 1) -> None:
        super().__init__(prefix="")
        self.described, self._multiple = network, multiple
        self.normalize: Normalize | None = None
        """Of `Forward`, in training; the block must then not be hybridized."""
        for name, shape in network.parameters():
            setattr(self, name, self.params.get(name, shape=shape))
        for name, shape in network.statistics():
            setattr(self, name, self.params.get(name, shape=shape, grad_req="null", differentiable=False))

    def hybrid_forward(self, F: Any, images: Any, *masks: Any, **parameters: Any) -> Any:
        by_layer = dict(zip(mask_names(self.described), masks, strict=bool(masks)))
        normalize = self.normalize if autograd.is_training() else None
        return Forward(F, self.described, parameters, by_layer, self._multiple, normalize)(images)


class WeightedLoss(nn.HybridBlock):
    """Network and loss in one graph: sum(weights * losses)."""

    def __init__(self, network: GluonNetwork) -> None:
        super().__init__()
        self.network, self._described = network, network.described

    def hybrid_forward(self, F: Any, weights: Any, labels: Any, images: Any, *masks: Any) -> Any:
        return F.sum(row_losses(F, self._described, self.network(images, *masks), labels) * weights)


def logits_symbol(network: ShapedNetwork, multiple: int) -> mx.sym.Symbol:
    """Logits of the variable `data`, of dropout's masks and of parameters by their canonical names.

    multiple: that of `Forward`.
    """
    arrays = (*network.parameters(), *network.statistics())
    parameters = {name: mx.sym.var(name, shape=shape) for name, shape in arrays}
    masks = {name: mx.sym.var(mask_variable(name)) for name in mask_names(network)}
    return Forward(mx.sym, network, parameters, masks, multiple)(mx.sym.var("data"))


def load_array(values: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
    """A copy on the device: MXNet would free NumPy's memory from its own threads if they shared it."""
    try:
        array = mx.nd.empty(values.shape, context, values.dtype)
    except KeyError:
        raise UserError(f"MXNet has no arrays of {values.dtype}", "let data() return float32 or int64 rows") from None
    copy_into(array, values)
    return array


def copy_into(array: mx.nd.NDArray, values: np.ndarray) -> None:
    """Copy values of the same shape, as `array[:] = values` does after 50 microseconds spent on the index."""
    array._sync_copyfrom(values)


def named_parameters(block: gluon.Block) -> Parameters:
    """All parameters of a block, by their places in it: Gluon's own names contain the number of blocks made before."""
    names: dict[int, str] = {}
    for name, parameter in block._collect_params_with_prefix().items():
        names.setdefault(id(parameter), name)  # one that two places share has the name of the first
    parameters = enumerate(block.collect_params().values())
    return {names.get(id(parameter), f"parameter{i}"): parameter for i, parameter in parameters}


def run_in_training(block: gluon.Block, inputs: list[mx.nd.NDArray]) -> None:
    """Run the block, which gives the parameters of layers for training only their shapes, and put back what it changes.

    Raises what the block raises.
    """
    parameters = block.collect_params().values()
    deferred = [parameter for parameter in parameters if parameter._deferred_init]
    before = [(parameter, parameter.list_data()[0].copy()) for parameter in parameters if not parameter._deferred_init]
    with autograd.record():
        block(*inputs)
    mx.nd.waitall()
    for parameter, values in before:
        parameter.set_data(values)
    for parameter in deferred:
        if parameter.grad_req == "null" and not parameter._deferred_init:  # a running statistic, which has changed
            parameter.initialize(ctx=parameter.list_ctx(), force_reinit=True)


def is_one_graph(block: gluon.HybridBlock, inputs: list[mx.nd.NDArray]) -> bool:
    """Whether a graph, which is made once, is all that a block does: in training, in evaluations, and in hooks."""
    if any(map(_has_hooks, block._children.values())):
        return False
    graphs = []
    for mode in (contextlib.nullcontext, autograd.record):
        block.hybridize()  # forgets the graph
        with mode():
            _, outputs = block._get_graph(*inputs)
        # the names of operations contain numbers that increase
        nodes = json.loads(outputs.tojson())["nodes"]
        graphs.append([{**node, "name": node["name"] if node["op"] == "null" else ""} for node in nodes])
    return graphs[0] == graphs[1]


@contextlib.contextmanager
def kept_graphs(block: gluon.Block) -> Iterator[None]:
    """What happens inside makes no graphs: parts of a block make them once, as in their first training step."""
    parts: list[gluon.Block] = []
    block.apply(parts.append)
    without = [part for part in parts if getattr(part, "_cached_op", part) is None]
    yield
    for part in without:
        forget_graph(part)


def forget_graph(block: gluon.Block) -> None:
    """Let a block that a task has hybridized make its graph again: as in a loop of Gluon's, in a training step."""
    if isinstance(block, gluon.HybridBlock):
        block._clear_cached_op()


def _has_hooks(block: gluon.Block) -> bool:
    hooks = block._forward_hooks or block._forward_pre_hooks
    return bool(hooks) or any(map(_has_hooks, block._children.values()))


def forget_gradients(parameters: Parameters) -> None:
    """Forget which parameters have a gradient; call it before a backward pass."""
    for parameter in parameters.values():
        for values in parameter.list_data():
            values._fresh_grad = False


def fill_gradients(parameters: Parameters) -> None:
    """Give parameters without a gradient since `forget_gradients` one of zeros, as every strategy expects it."""
    for parameter in parameters.values():
        for values, gradient in zip(parameter.list_data(), parameter.list_grad(), strict=True):
            if not values._fresh_grad:
                gradient[:] = 0
                values._fresh_grad = True  # else the trainer refuses to update it


def freeze_parameters(
    patterns: Sequence[str], parameters: Parameters, others: Iterable[str]
) -> tuple[Parameters, Parameters]:
    """What `freeze` returns; layers that are frozen as a whole get no gradients.

    The others do, which nothing uses: without that of its weight, a dense layer of MXNet leaves out that of its bias,
    and statistics change in their layer's backward pass only.
    """
    trained, frozen = freeze(patterns, parameters, others)
    layers = {name.rpartition(".")[0] for name in (*trained, *others)}
    for name, parameter in frozen.items():
        if name.rpartition(".")[0] not in layers:
            parameter.grad_req = "null"
    return trained, frozen


def is_sparse(parameter: gluon.Parameter) -> bool:
    """Whether its values or its gradients are sparse arrays, which strategies do not combine."""
    return bool(parameter._grad_stype != "default" or parameter._stype != "default")


def parameter_weights(parameters: Parameters, context: mx.Context) -> Weights:
    """The values of parameters on a device, by name."""
    mx.nd.waitall()  # the engine does not know that the backward pass of a graph writes running statistics
    return {name: parameter.data(context).asnumpy() for name, parameter in parameters.items()}


def load_parameters(parameters: Parameters, weights: Weights) -> None:
    """Set parameters on all their devices. Raises ValueError if names or shapes differ."""
    check_weights(weights, {name: parameter.shape for name, parameter in parameters.items()})
    mx.nd.waitall()
    for name, parameter in parameters.items():
        parameter.set_data(mx.nd.array(weights[name], dtype=weights[name].dtype))
