"""Networks as programs of torch.export (.pt2), which need PyTorch only."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from hvdtrain.frameworks.torch.network import TorchNetwork
from hvdtrain.frameworks.torch.objective import evaluating, load_module
from hvdtrain.networks.description import ShapedNetwork, Weights

METADATA = "metadata.json"
"""Key of the metadata among a program's extra files."""


class _Exported(nn.Module):
    """Takes whole images, as data has them."""

    def __init__(self, network: ShapedNetwork, weights: Weights) -> None:
        super().__init__()
        self.network, self._used_pixels = TorchNetwork(network), network.used_pixels
        load_module(self.network, weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = self._used_pixels
        return self.network(images[:, :, :height, :width])


def to_program(network: ShapedNetwork, weights: Weights, metadata: Mapping[str, str]) -> bytes:
    """A program in evaluation mode: logits (n, classes) of float32 `images` (n, channels, height, width), any n."""
    example = torch.zeros(2, *network.input_shape)  # with one row, n would become a constant
    dynamic = {"images": {0: torch.export.Dim("n")}}
    module = _Exported(network, weights)
    with evaluating(module), torch.no_grad():
        program = torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={METADATA: json.dumps(dict(metadata))})
    return content.getvalue()


def program_logits(content: bytes, images: np.ndarray) -> np.ndarray:
    """Logits of float32 images by a saved program."""
    with torch.no_grad():
        return torch.export.load(io.BytesIO(content)).module()(torch.from_numpy(images)).numpy()
