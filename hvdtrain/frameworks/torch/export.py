"""Networks as programs of torch.export (.pt2), which need PyTorch only."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from hvdtrain.frameworks.torch.network import TorchNetwork, load_module
from hvdtrain.frameworks.torch.objective import to_tensor
from hvdtrain.networks.description import ShapedNetwork, Weights

METADATA = "metadata.json"
"""Key of the metadata among a program's extra files."""


class WholeImages(nn.Module):
    """A network that takes whole images, as data has them: float32 `images` (n, channels, height, width)."""

    def __init__(self, network: ShapedNetwork, weights: Weights) -> None:
        super().__init__()
        self.network, self._used_pixels = TorchNetwork(network), network.used_pixels
        load_module(self.network, weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = self._used_pixels
        return self.network(images[:, :, :height, :width])


def to_program(module: WholeImages, images: np.ndarray, metadata: Mapping[str, str]) -> bytes:
    """A program of the module in evaluation mode, for images like these, but of any number."""
    content = io.BytesIO()
    with torch.no_grad():
        dynamic = ({0: torch.export.Dim("n")},)
        program = torch.export.export(module.eval(), (to_tensor(images),), dynamic_shapes=dynamic, strict=False)
    torch.export.save(program, content, extra_files={METADATA: json.dumps(dict(metadata))})
    return content.getvalue()


@torch.no_grad()
def program_logits(content: bytes, images: np.ndarray) -> np.ndarray:
    """The logits that a saved program returns."""
    return torch.export.load(io.BytesIO(content)).module()(to_tensor(images)).numpy()
