"""The moving average of a block's trained parameters, by --ema."""

from __future__ import annotations

import mxnet as mx

from hvdtrain.frameworks.averages import share_of_weights
from hvdtrain.frameworks.mxnet.network import Parameters
from hvdtrain.networks.description import Weights


class MXNetAverages:
    """The average of the weights after each update, on the first device; none before the first one."""

    def __init__(self, decay: float, parameters: Parameters) -> None:
        self._decay, self._parameters, self._averages = decay, parameters, dict[str, mx.nd.NDArray]()

    def update(self, step: int) -> None:
        """Take the weights after the update of this step, whose number counts from 0."""
        weights = {name: parameter.list_data()[0] for name, parameter in self._parameters.items()}
        if not self._averages:
            self._averages = {name: weight.copy() for name, weight in weights.items()}
            return
        share = share_of_weights(self._decay, step)
        for name, average in self._averages.items():
            average += share * (weights[name] - average)

    def arrays(self) -> Weights:
        """The averages by name; empty before the first update."""
        return {name: average.asnumpy() for name, average in self._averages.items()}

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned."""
        self._averages = {}
        for name, parameter in self._parameters.items() if arrays else ():
            weight = parameter.list_data()[0]
            self._averages[name] = mx.nd.array(arrays[name], ctx=weight.context, dtype=weight.dtype)
