"""Gradients in types that NumPy or Horovod lack: combined over ranks, they are the mean of the ranks'."""

import os
from unittest import mock

import numpy as np
import pytest
import torch
from support.rank_threads import ThreadGroup, on_all_ranks

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.torch.strategies import TorchAllreduce, _Compression


@pytest.fixture(autouse=True)
def own_environment():
    with mock.patch.dict(os.environ):  # PyTorch sets a variable
        yield


TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)


class Halves:
    """Compresses as Horovod does."""

    @staticmethod
    def compress(tensor):
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor, dtype):
        return tensor.to(dtype)


def values(dtype, shape):
    """Numbers that all types have, as a view that conjugates where the type is complex."""
    number = torch.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    return (torch.complex(number, -number).conj() if dtype.is_complex else number).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_horovod_gets_a_type_that_it_has(dtype, shape):
    gradient = values(dtype, shape)
    sent, context = _Compression(Halves).compress(gradient)
    assert sent.dtype is torch.float16
    received = _Compression(Halves).decompress(sent, context)
    assert received.dtype is dtype and torch.equal(received, gradient)


class Summing(ThreadGroup):
    def allreduce(self, array):
        array[:] = sum(self.gather(array.copy()))


@pytest.mark.parametrize("dtypes", [*((dtype,) for dtype in TYPES), TYPES])
def test_an_allreduce_averages_gradients_of_all_types(dtypes):
    def combined(group):
        group.__class__ = Summing
        parameters = [torch.nn.Parameter(values(dtype, shape)) for dtype in dtypes for shape in ((), (3,), (1, 2))]
        for parameter in parameters:
            parameter.grad = parameter.detach().clone() * (1 + 2 * group.rank)
        strategy = TorchAllreduce(Config(strategy="ring"), RuntimeOptions(device="cpu"), group)
        strategy.reduce(torch.optim.SGD(parameters, lr=0.1))
        return parameters

    for parameters in on_all_ranks(2, combined):
        assert all(torch.equal(parameter.grad, 2 * parameter.detach()) for parameter in parameters)
