"""The moving average of a module's trained parameters, by --ema."""

from __future__ import annotations

import torch
from torch import nn

from hvdtrain.frameworks.averages import share_of_weights
from hvdtrain.frameworks.torch.network import host_array, laid_out_as
from hvdtrain.networks.description import Weights


class TorchAverages:
    """The average of the weights after each update; none before the first one. parameters: by name."""

    def __init__(self, decay: float, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self._decay, self._parameters, self._averages = decay, parameters, dict[str, torch.Tensor]()
        first = {id(parameter): name for name, parameter in parameters.items()}
        every = model.state_dict(keep_vars=True)
        self._names = {name: first[id(tensor)] for name, tensor in every.items() if id(tensor) in first}
        """By each name of a parameter, which has several where it is tied, the first one."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after the update of this step, whose number counts from 0."""
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        if self._averages:
            share = share_of_weights(self._decay, step)
            torch._foreach_lerp_(list(self._averages.values()), list(weights.values()), share)
        else:
            self._averages = {name: weight.clone() for name, weight in weights.items()}

    def arrays(self) -> Weights:
        """The averages under all names of the parameters; empty before the first update."""
        if not self._averages:
            return {}
        return {name: host_array(self._averages[first]).copy() for name, first in self._names.items()}

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned."""
        self._averages = {}
        for name, parameter in self._parameters.items() if arrays else ():
            value = torch.from_numpy(arrays[name].copy()).to(parameter.device, parameter.dtype)
            self._averages[name] = laid_out_as(parameter.detach(), value)
