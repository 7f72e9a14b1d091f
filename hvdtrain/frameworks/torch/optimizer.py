"""PyTorch's optimizers, their state as arrays, so that no file has to be unpickled, and averages of weights (--ema).

hvdtrain's own optimizers have canonical names; in a script's loop the arrays are what state_dict() returns.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import json
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.config.forms import Betas
from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.frameworks.averages import check_own_averages, share_of_weights
from hvdtrain.frameworks.own_optimizers import numbers_of
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.frameworks.torch.network import SAVED, host_array, laid_out_as
from hvdtrain.interfaces.learner import OptimizerState
from hvdtrain.networks.description import Weights

CANONICAL = {"momentum_buffer": "momentum", "exp_avg": "mean", "exp_avg_sq": "square"}
"""PyTorch's names of optimizer state, and those of `OptimizerState`."""
NUMBERS = "hvdtrain: numbers"
"""In the state of an optimizer: attributes that are numbers and have changed since it was given, such as a counter of
its own. Among its attributes: what they were then."""
PLAIN = (str, bool, int, type(None))
SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple}
MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {"dict": dict, "Counter": collections.Counter}
"""By the names under which JSON has them; MultiStepLR has a Counter."""
STATE_TYPES = (*SAVED, torch.uint16, torch.uint32, torch.uint64)
"""The types of tensors that a script's state can have."""
BYTES = {torch.bfloat16: torch.uint16}
"""Types that NumPy lacks, and those of the same size as which their bits are kept."""


def make_optimizer(config: Config, named: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """PyTorch's optimizer, whose state exists (as zeros) from the start, so that it can be broadcast and loaded.

    Raises UserError for a pattern of --no-decay that matches no parameter.
    """
    parameters, groups = list(named.values()), _groups(config, named)
    # One call updates all parameters. GradScaler leaves it to a fused optimizer to skip a step, but Horovod's do not.
    fused = config.precision != "fp16" and all(map(torch.is_floating_point, parameters))
    if config.optimizer != "sgd":
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        betas = Betas.parse(config.betas)
        adam = kind(groups, config.lr, (betas.beta1, betas.beta2), config.epsilon, config.weight_decay, fused=fused)
        for parameter in parameters:
            adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device if fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return adam
    sgd = torch.optim.SGD(
        groups,
        config.lr,
        config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        fused=fused,
    )
    for parameter in parameters if config.momentum else ():
        sgd.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return sgd


def _groups(config: Config, named: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
    """The parameters in PyTorch's groups: those with weight decay and, if there are such, those without."""
    without = without_decay(config.no_decay, named)
    groups: list[dict[str, Any]] = [
        {"params": [parameter for name, parameter in named.items() if name not in without]},
        {"params": [parameter for name, parameter in named.items() if name in without], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    """In the order of its groups."""
    return itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)


def trained_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Those of its parameters that require gradients."""
    return [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]


def order_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """The names of the parameters that are trained, as the optimizer has them."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return tuple(names[id(parameter)] for parameter in trained_by(optimizer))


SETTINGS = (numbers.Real, str, tuple, list, torch.Tensor)
"""Types whose text is the same on every rank, unlike that of a function, which has its address."""


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What it has besides tensors, for `Learner.settings`: of each group of parameters, where it has several."""
    groups = optimizer.param_groups
    state = next((one for one in optimizer.state.values() if isinstance(one, Mapping)), {})  # some have numbers there
    names = [name for name, value in groups[0].items() if name != "params" and isinstance(value, SETTINGS)]
    values = {name: [_plain(group.get(name)) for group in groups] for name in names}
    single = {key: of_groups[0] if len(groups) == 1 else of_groups for key, of_groups in values.items()}
    return single | ({"updates": _plain(state["step"])} if "step" in state else {})


def _plain(value: Any) -> Any:
    """A setting as JSON has it: also a tensor, as rates may be."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def read_state(optimizer: Any, parameters: dict[str, nn.Parameter], extra: dict[str, Any]) -> OptimizerState:
    """The state of these parameters, with `extra` as what only PyTorch needs."""
    arrays, updates = {}, 0
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            if key == "step":
                updates = int(value)
            else:
                arrays[f"{CANONICAL[key]}/{name}"] = host_array(value).copy()
    return OptimizerState(arrays, updates=updates, extra=extra)


def write_state(optimizer: Any, parameters: dict[str, nn.Parameter], state: OptimizerState) -> None:
    """Set the state of these parameters. Raises KeyError if `state` does not have it."""
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            if key == "step":
                value.fill_(state.updates)
            else:
                array = state.arrays[f"{CANONICAL[key]}/{name}"]
                value.copy_(torch.from_numpy(np.asarray(array / np.float32(state.scale))))  # else a scalar, of one


def saved_states(kept: Mapping[str, Any]) -> Weights:
    """The states of an optimizer, schedules and the like, as arrays. Raises UserError if one has something else."""
    arrays: Weights = {}
    for name, one in kept.items():
        try:
            state, first = one.state_dict(), getattr(one, "__dict__", {}).get(NUMBERS)
            if first is not None and (changed := dict(numbers_of(one).items() - first.items())):
                state = {**state, NUMBERS: changed}
            arrays |= to_arrays(name, state)
        except ValueError as error:
            raise UserError(
                f"the state of {name} cannot be saved ({error})",
                "let its state_dict() have dense tensors, numbers, texts, lists and dicts only",
            ) from None
    return arrays


def to_arrays(name: str, state: Any) -> Weights:
    """The state as arrays: `name` has structure and numbers, JSON in uint8 (n,), and `name/0` and so on the tensors.

    Raises ValueError for anything but a tensor, type of tensors, number, text, list, tuple or dict.
    """
    arrays: Weights = {}
    structure = json.dumps(_encode(state, name, arrays), allow_nan=False)
    return {name: np.frombuffer(structure.encode(), np.uint8), **arrays}


def from_arrays(name: str, arrays: Weights) -> Any:
    """The state that `to_arrays` was given; its tensors are on the CPU.

    Raises ValueError for arrays that `to_arrays` does not write.
    """
    try:
        return _decode(json.loads(arrays[name].tobytes()), arrays)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(f"{name} is not a state ({type(error).__name__}: {error})") from None


def _encode(value: Any, name: str, arrays: Weights) -> Any:
    if type(value) in PLAIN or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return {"float": str(value)}
    if isinstance(value, np.generic):
        return _encode(value.item(), name, arrays)
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor):
        key, dtype = f"{name}/{len(arrays)}", str(value.dtype).removeprefix("torch.")
        if value.layout is not torch.strided or value.dtype not in STATE_TYPES:
            raise ValueError(f"it has a tensor of {dtype} in layout {value.layout}".replace("torch.", ""))
        tensor = value.detach().resolve_conj().resolve_neg().cpu()
        arrays[key] = tensor.contiguous().view(BYTES.get(tensor.dtype, tensor.dtype)).numpy().copy()
        return {"tensor": key, "dtype": dtype}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(part, name, arrays) for part in value]}
    if isinstance(value, dict):
        kind = "Counter" if isinstance(value, collections.Counter) else "dict"
        return {kind: [[_encode(key, name, arrays), _encode(part, name, arrays)] for key, part in value.items()]}
    raise ValueError(f"it has a {type(value).__name__}")


def _decode(value: Any, arrays: Weights) -> Any:
    if type(value) in PLAIN or type(value) is float:
        return value
    (kind, content), *rest = value.items()
    if kind == "tensor":
        dtype = getattr(torch, dict(rest)["dtype"])
        return torch.from_numpy(arrays[content].copy()).view(dtype)
    if kind == "float":
        return float(content)
    if kind == "dtype":
        return torch.zeros((), dtype=getattr(torch, content)).dtype  # an error for what is no type
    if kind in SEQUENCES:
        return SEQUENCES[kind](_decode(part, arrays) for part in content)
    return MAPPINGS[kind]({_decode(key, arrays): _decode(part, arrays) for key, part in content})


class TorchAverages:
    """The average of the weights after each update; none before the first one. parameters: by name."""

    def __init__(self, decay: float, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self._decay, self._parameters, self._averages = decay, parameters, dict[str, torch.Tensor]()
        first = {id(parameter): name for name, parameter in parameters.items()}
        every = model.state_dict(keep_vars=True)
        self._names = {name: first[id(tensor)] for name, tensor in every.items() if id(tensor) in first}
        """By each name of a parameter, which has several where it is tied, the first one."""
        if copied := first.keys() - set(map(id, every.values())):
            problem = f"averages: the model's state_dict() does not return {min(first[one] for one in copied)} itself"
            raise UserError(problem, "let it return the parameter and no copy, or leave out --ema")

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


class TorchModes(TorchAverages):
    """The weights that an optimizer with modes, as those without a schedule have, has in that of evaluations."""

    def __init__(self, optimizer: Any, config: Config, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        check_own_averages(config)
        super().__init__(0.0, model, parameters)
        self._optimizer, self._averages = optimizer, self._parameters
        optimizer.train()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the mode of evaluations; then the weights and the state of before, as train() may round."""
        optimizer, weights = self._optimizer, list(parameters_of(self._optimizer))
        states = [optimizer.state.get(weight, {}) for weight in weights]
        before, values = copy.deepcopy(states), [weight.detach().clone() for weight in weights]
        optimizer.eval()
        try:
            yield
        finally:
            optimizer.train()
            for state, weight, kept, value in zip(states, weights, before, values, strict=True):
                state.update(kept)
                weight.detach().copy_(value)

    def update(self, step: int) -> None:
        """Nothing: the optimizer updates them."""

    def load(self, arrays: Weights) -> None:
        """Nothing: they follow from weights and state."""

    def arrays(self) -> Weights:
        with self.evaluating():
            return super().arrays()


def make_averages(optimizer: Any, config: Config, *weights: Any) -> TorchAverages | None:
    """Those that the optimizer makes itself, or of --ema. weights: the last arguments of both classes."""
    if all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        return TorchModes(optimizer, config, *weights)
    return TorchAverages(config.ema, *weights) if config.ema else None
