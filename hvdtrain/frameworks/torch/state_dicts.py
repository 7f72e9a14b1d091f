"""State dicts in PyTorch's own format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hvdtrain.frameworks.torch.network import SAVED, host_array
from hvdtrain.networks.description import Weights

INNER = ("state_dict", "model_state_dict", "model")
"""Under which of these names files have the model's state next to others."""


def load_state_dict(path: Path) -> Weights:
    """The tensors of a file that torch.save wrote, as arrays by name. Only tensors and plain values are unpickled.

    Raises OSError or ValueError if it cannot be read.
    """
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # for invalid bytes, PyTorch's readers raise a dozen kinds
        found = re.search(r"GLOBAL ([\w.]+)|TorchScript", str(error))
        kinds = found and f"objects ({found[1] or found[0]}), and only tensors and plain values are read"
        kinds = kinds or "no state dict that PyTorch can read"
        raise ValueError(f"it holds {kinds}: save model.state_dict() alone, by torch.save()") from None
    inner = next((content[name] for name in INNER if isinstance(content, dict) and name in content), content)
    tensors = inner if isinstance(inner, dict) else {}
    weights = {
        str(name): host_array(tensor.detach())
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor) and tensor.dtype in SAVED and tensor.layout is torch.strided
    }
    if not weights:
        raise ValueError(f"it holds {type(inner).__name__}, not a dict of tensors")
    return weights


def load_safetensors(path: Path) -> Weights:
    """The arrays of a .safetensors file by name: of bfloat16, which NumPy lacks, as float32."""
    return {name: host_array(tensor) for name, tensor in load_file(path).items()}
