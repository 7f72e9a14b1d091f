"""PyTorch's optimizers, and their state in canonical names."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.config.options import Config
from hvdtrain.interfaces import ADAM_BETAS, ADAM_EPSILON, OptimizerState

CANONICAL = {"momentum_buffer": "momentum", "exp_avg": "mean", "exp_avg_sq": "square"}
"""PyTorch's names of optimizer state, and those of `OptimizerState`."""


def make_optimizer(config: Config, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """PyTorch's optimizer, whose state exists (as zeros) from the start, so that it can be broadcast and loaded."""
    # One call updates all parameters. GradScaler leaves it to a fused optimizer to skip a step, but Horovod's do not.
    fused = config.precision != "fp16"
    if config.optimizer == "adam":
        adam = torch.optim.Adam(parameters, config.lr, ADAM_BETAS, ADAM_EPSILON, config.weight_decay, fused=fused)
        for parameter in parameters:
            adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device if fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return adam
    sgd = torch.optim.SGD(
        parameters,
        config.lr,
        config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        fused=fused,
    )
    for parameter in parameters if config.momentum else ():
        sgd.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return sgd


def read_state(optimizer: Any, parameters: dict[str, nn.Parameter], extra: dict[str, Any]) -> OptimizerState:
    """The state of these parameters, with `extra` as what only PyTorch needs."""
    arrays, updates = {}, 0
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            if key == "step":
                updates = int(value)
            else:
                arrays[f"{CANONICAL[key]}/{name}"] = value.cpu().numpy().copy()
    return OptimizerState(arrays, updates=updates, extra=extra)


def write_state(optimizer: Any, parameters: dict[str, nn.Parameter], state: OptimizerState) -> None:
    """Set the state of these parameters. Raises KeyError if `state` does not have it."""
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            if key == "step":
                value.fill_(state.updates)
            else:
                array = state.arrays[f"{CANONICAL[key]}/{name}"]
                value.copy_(torch.from_numpy(array / np.float32(state.scale)))
