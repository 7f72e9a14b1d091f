"""Values in types and layouts that NumPy or Horovod lack, and states of optimizers: sent, saved and loaded."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks
from support.schedules import BY_STEPS, SCHEDULES
from torch import nn
from torch.optim import lr_scheduler

from hvdtrain.collectives.combining import MeanOfRanks
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.torch.network import SAVED, buffer_arrays, load_buffers
from hvdtrain.frameworks.torch.optimizer import from_arrays, to_arrays
from hvdtrain.frameworks.torch.strategies import SENT_BY_HOROVOD, TorchStrategy, _broadcast, _Compression
from hvdtrain.frameworks.torch.user_loop import TorchUserLearner

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
    """Numbers that all types have, as a view that conjugates where the type is complex; of images: channels last."""
    number = torch.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    number = (torch.complex(number, -number).conj() if dtype.is_complex else number).to(dtype)
    return number.to(memory_format=torch.channels_last) if len(shape) == 4 else number


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4, 4)])
def test_horovod_gets_a_contiguous_type_that_it_has(dtype, shape):
    gradient = values(dtype, shape)
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


LAYOUTS = {
    "plain": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.t(),
    "one number": lambda tensor: tensor[0, 0].clone(),
    "empty": lambda tensor: tensor[:0].clone(),
    "conjugate": lambda tensor: tensor.conj(),
}


@pytest.mark.parametrize("dtype", SAVED)
def test_horovod_broadcasts_tensors_of_any_type_and_layout(dtype):
    sent = {}

    def send(tensors, root_rank):
        sent.update((name, tensor.clone()) for name, tensor in tensors.items())

    def receive(tensors, root_rank):
        for name, tensor in tensors.items():
            assert tensor.is_contiguous() and tensor.dtype in (*SENT_BY_HOROVOD, torch.uint8)
            tensor.copy_(sent[name])

    of_rank_0, others = (
        {name: layout(torch.full((2, 3), number).to(dtype)) for name, layout in LAYOUTS.items()} for number in (1, 0)
    )
    others["shared"] = of_rank_0["shared"] = torch.zeros(1, dtype=dtype).expand(3)
    for tensors, broadcast in ((of_rank_0, send), (others, receive)):
        _broadcast(SimpleNamespace(broadcast_parameters=broadcast), tensors)
    for name, tensor in of_rank_0.items():
        assert torch.equal(others[name], tensor) and others[name].dtype is dtype, name


@pytest.mark.parametrize("dtypes", [*((dtype,) for dtype in TYPES), TYPES])
def test_a_mean_on_the_host_averages_gradients_of_all_types(dtypes):
    def combined(group):
        shapes = (), (3,), (1, 2), (2, 3, 4, 4)
        parameters = [torch.nn.Parameter(values(dtype, shape)) for dtype in dtypes for shape in shapes]
        strategy = TorchStrategy(Config(strategy="ring"), RuntimeOptions(device="cpu"), group)
        strategy.make_combiner = MeanOfRanks
        learner = TorchUserLearner(strategy)
        learner.setup(nn.ParameterList(parameters), torch.optim.SGD(parameters, lr=0.0), False)
        for parameter in parameters:
            parameter.grad = parameter.detach().clone() * (1 + 2 * group.rank)
        learner.add(learner.take_gradients(0.0))
        learner._is_stepping = True
        learner.end_step()
        return parameters

    for parameters in on_all_ranks(2, combined):
        assert all(torch.equal(parameter.grad, 2 * parameter.detach()) for parameter in parameters)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(TYPES)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)


def same(first, second):
    """Whether two states are equal, including their types."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (first != first and second != second)


@given(STATES)
def test_any_state_comes_back(state):
    assert same(from_arrays("a", to_arrays("a", state)), state)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_tensors_of_any_type_come_back(shape):
    number = torch.arange(24)[: int(np.prod(shape))].reshape(shape)
    types = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    tensors = [number.to(dtype) for dtype in types] + [torch.complex(number.float(), -number.float()).conj()]
    for tensor in tensors:
        state = [tensor, tensor.mT if len(shape) > 1 else tensor]
        assert same(from_arrays("a", to_arrays("a", {"x": state}))["x"], state)


OPTIMIZERS = ("SGD", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "Adamax", "ASGD", "Adafactor", "Rprop")


@pytest.mark.parametrize(
    ("kind", "schedule_of"), [*(("Adam", name) for name in BY_STEPS), *((kind, "milestones") for kind in OPTIMIZERS)]
)
def test_optimizers_and_schedules_continue_from_their_state(kind, schedule_of, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # which PyTorch sets for the whole process

    def made():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05)
        return model, optimizer, SCHEDULES[schedule_of](optimizer, 20, 5)

    def train(model, optimizer, schedule, steps):
        for step in steps:
            optimizer.zero_grad()
            (model(torch.ones(1, 3)) * (step + 1)).square().sum().backward()
            optimizer.step()
            schedule.step(*[1.0] * isinstance(schedule, lr_scheduler.ReduceLROnPlateau))

    whole, parts = made(), made()
    train(*whole, range(6))
    train(*parts, range(3))
    saved = {**to_arrays("optimizer", parts[1].state_dict()), **to_arrays("schedule", parts[2].state_dict())}
    resumed = made()
    resumed[0].load_state_dict(parts[0].state_dict())
    resumed[1].load_state_dict(from_arrays("optimizer", saved))
    resumed[2].load_state_dict(from_arrays("schedule", saved))
    train(*resumed, range(3, 6))
    assert torch.equal(resumed[0].weight, whole[0].weight)
    assert resumed[1].param_groups[0]["lr"] == whole[1].param_groups[0]["lr"]


@pytest.mark.parametrize("state", [object(), {"a": {1, 2}}, [lambda: 0], {"x": nn.Linear(1, 1)}])
def test_other_states_are_errors(state):
    with pytest.raises(ValueError, match="it has a "):
        to_arrays("a", state)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"tensor": "b"}', '{"tensor": "a/0", "dtype": "nn"}', '{"list": 3}', '{"os": []}', "[1]", "nothing",
     '{"dict": [[{"list": []}, 1]]}', '{"float": "x"}', '{"dtype": "nn"}', '{"dtype": "no"}', "[" * 100_000],
)  # fmt: skip
def test_damaged_states_are_errors(text):
    arrays = {"a": np.frombuffer(text.encode(), np.uint8), "a/0": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match="a is not a state"):
        from_arrays("a", arrays)
