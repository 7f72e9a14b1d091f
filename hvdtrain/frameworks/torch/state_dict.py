"""What state_dict() of optimizers, schedulers and the like returns, as arrays: no file has to be unpickled."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from hvdtrain.networks.description import Weights

PLAIN = (str, bool, int, type(None))
SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple}
MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {"dict": dict, "Counter": collections.Counter}
"""By the names under which JSON has them; MultiStepLR has a Counter."""
BYTES = {torch.bfloat16: torch.uint16}
"""Types that NumPy lacks, and those of the same size as which their bits are kept."""


def to_arrays(name: str, state: Any) -> Weights:
    """The state as arrays: `name` has structure and numbers, JSON in uint8 (n,), and `name/0` and so on the tensors.

    Raises ValueError for anything but a tensor, number, text, list, tuple or dict.
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
        raise ValueError(f"{name} is no state ({type(error).__name__}: {error})") from None


def _encode(value: Any, name: str, arrays: Weights) -> Any:
    if type(value) in PLAIN or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return {"float": str(value)}
    if isinstance(value, np.generic):
        return _encode(value.item(), name, arrays)
    if isinstance(value, torch.Tensor):
        key = f"{name}/{len(arrays)}"
        own = value.detach().cpu()
        arrays[key] = own.contiguous().view(BYTES.get(own.dtype, own.dtype)).numpy().copy()
        return {"tensor": key, "dtype": str(own.dtype).removeprefix("torch.")}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(one, name, arrays) for one in value]}
    if isinstance(value, dict):
        kind = "Counter" if isinstance(value, collections.Counter) else "dict"
        return {kind: [[_encode(key, name, arrays), _encode(one, name, arrays)] for key, one in value.items()]}
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
    if kind in SEQUENCES:
        return SEQUENCES[kind](_decode(one, arrays) for one in content)
    return MAPPINGS[kind]({_decode(key, arrays): _decode(one, arrays) for key, one in content})
