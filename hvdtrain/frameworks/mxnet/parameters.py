"""The parameters of a Gluon block, its running statistics among them."""

from __future__ import annotations

import mxnet as mx
from mxnet import gluon

from hvdtrain.frameworks.mxnet.strategies import Parameters
from hvdtrain.networks.description import Weights, check_weights


def named_parameters(block: gluon.Block) -> Parameters:
    """All parameters of a block, by their places in it: Gluon's own names contain the number of blocks made before."""
    names: dict[int, str] = {}
    for name, parameter in block._collect_params_with_prefix().items():
        names.setdefault(id(parameter), name)  # one that two places share has the name of the first
    found = list(block.collect_params().values())
    return {names.get(id(parameter), f"parameter{i}"): parameter for i, parameter in enumerate(found)}


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
