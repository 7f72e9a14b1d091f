"""Steps in shards in PyTorch: what a user's model may have besides parameters, and its random numbers."""

import numpy as np
import torch
from torch import nn

from hvdtrain.frameworks.torch.network import buffer_arrays, load_buffers


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rotations", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("mask", torch.tensor([0.0, -np.inf]))
        self.register_buffer("large", torch.tensor([2**60 + 1]))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("short", torch.tensor([1.5], dtype=torch.bfloat16))


def test_buffers_of_all_types_keep_their_bits():
    model = Buffers()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    arrays = buffer_arrays(model)
    assert {array.dtype for array in arrays} == {np.dtype(np.float64), np.dtype(np.int64)}
    for buffer in model.buffers():
        buffer.zero_()
    load_buffers(model, arrays)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
