"""Values in types that NumPy or Horovod lack, or in other layouts: sent, combined over ranks, saved and loaded."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.rank_threads import on_all_ranks

from hvdtrain import fit
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.torch.network import buffer_arrays, load_buffers
from hvdtrain.frameworks.torch.strategies import TorchAllreduce, _broadcast, _Compression
from hvdtrain.runs import checkpoints

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
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4, 4)])
def test_horovod_gets_a_contiguous_type_that_it_has(dtype, shape):
    gradient = values(dtype, shape)
    gradient = gradient.to(memory_format=torch.channels_last) if len(shape) == 4 else gradient
    sent, context = _Compression(Halves).compress(gradient)
    assert sent.dtype is torch.float16 and sent.is_contiguous()
    received = _Compression(Halves).decompress(sent, context)
    assert received.dtype is dtype and torch.equal(received, gradient) and received.stride() == gradient.stride()


class Buffers(torch.nn.Module):
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


class Laid(torch.nn.Module):
    """Its kernel is in channels_last, and its weight and a buffer are transposed."""

    def __init__(self):
        super().__init__()
        self.kernel = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.linear = torch.nn.Linear(4, 2)
        self.linear.weight = torch.nn.Parameter(torch.arange(8.0).view(4, 2).t() / 8)
        self.register_buffer("table", torch.arange(8.0).view(4, 2).t())

    def forward(self, images):
        return self.linear(self.kernel(images).mean((2, 3))) + self.table.mean(1)


class LaidTask:
    def data(self):
        images = np.random.default_rng(0).normal(size=(24, 3, 5, 5)).astype(np.float32)
        return ((images, np.arange(24) % 2),) * 2

    def model(self):
        return Laid()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("single"), strategy="single")


def trained(folder, **options):
    config = Config(epochs=2, batch_size=8, lr=0.1, momentum=0.9, **options)
    return checkpoints.newest(fit(LaidTask(), config, RuntimeOptions(runs=folder, device="cpu", quiet=True)).folder)[1]


@pytest.mark.parametrize("options", [{"strategy": "ring"}, {"strategy": "ddp"}, {"strategy": "single", "shards": 2}])
def test_tensors_in_other_layouts_are_trained_as_in_one_process(options, expected, tmp_path):
    saved = trained(tmp_path, **options)
    for name, array in expected.weights.items():
        np.testing.assert_allclose(saved.weights[name], array, 1e-5, 1e-6, err_msg=name)


def test_horovod_broadcasts_tensors_in_any_layout():
    def broadcast(tensors, root_rank):
        for tensor in tensors.values():
            assert tensor.is_contiguous()
            tensor.add_(1)

    tensors = {"kernel": torch.zeros(2, 3).t(), "plain": torch.zeros(2), "shared": torch.zeros(1).expand(3)}
    _broadcast(SimpleNamespace(broadcast_parameters=broadcast), tensors)
    assert {name: tensor.unique().tolist() for name, tensor in tensors.items()} == {
        "kernel": [1.0],
        "plain": [1.0],
        "shared": [0.0],
    }


@pytest.mark.parametrize("dtypes", [*((dtype,) for dtype in TYPES), TYPES])
def test_an_allreduce_averages_gradients_of_all_types(dtypes):
    def combined(group):
        parameters = [torch.nn.Parameter(values(dtype, shape)) for dtype in dtypes for shape in ((), (3,), (1, 2))]
        for parameter in parameters:
            parameter.grad = parameter.detach().clone() * (1 + 2 * group.rank)
        strategy = TorchAllreduce(Config(strategy="ring"), RuntimeOptions(device="cpu"), group)
        strategy.reduce(torch.optim.SGD(parameters, lr=0.1))
        return parameters

    for parameters in on_all_ranks(2, combined):
        assert all(torch.equal(parameter.grad, 2 * parameter.detach()) for parameter in parameters)
