"""The gradients of all parameters as one array, and back."""

from __future__ import annotations

from typing import Any

import torch

from hvdtrain.frameworks.torch.network import as_real, from_real


def gradients_of(optimizer: Any) -> list[torch.Tensor]:
    """The gradients of all parameters that are trained."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def flatten(gradients: list[torch.Tensor]) -> torch.Tensor:
    """All gradients in one array, real, (n,); in float32 where all are in bfloat16, which NumPy lacks."""
    flat = torch.cat([as_real(gradient).flatten() for gradient in gradients])
    return flat.float() if flat.dtype is torch.bfloat16 else flat


def distribute(flat: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """Write what `flat` holds, the elements of all gradients as from `flatten`, into the gradients."""
    sizes = [gradient.numel() * (1 + gradient.is_complex()) for gradient in gradients]
    for gradient, part in zip(gradients, flat.split(sizes), strict=True):
        gradient.copy_(from_real(part.view(as_real(gradient).shape), gradient.dtype))
