"""States of optimizers and schedulers as arrays, and back."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hvdtrain.frameworks.torch.optimizer import from_arrays, to_arrays

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
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


KINDS = torch.optim.lr_scheduler
SCHEDULES = {
    "MultiStepLR": lambda optimizer: KINDS.MultiStepLR(optimizer, [2, 4, 4]),
    "OneCycleLR": lambda optimizer: KINDS.OneCycleLR(optimizer, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda optimizer: KINDS.ReduceLROnPlateau(optimizer, patience=0),
    "LambdaLR": lambda optimizer: KINDS.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "CyclicLR": lambda optimizer: KINDS.CyclicLR(optimizer, 0.01, 0.1, 3, cycle_momentum=False),
    "SequentialLR": lambda optimizer: KINDS.SequentialLR(
        optimizer, [KINDS.ConstantLR(optimizer), KINDS.CosineAnnealingLR(optimizer, 9)], [3]
    ),
    "CosineAnnealingWarmRestarts": lambda optimizer: KINDS.CosineAnnealingWarmRestarts(optimizer, 3),
    "PolynomialLR": KINDS.PolynomialLR,
}
OPTIMIZERS = ("SGD", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "Adamax", "ASGD", "Adafactor", "Rprop")


@pytest.mark.parametrize(
    ("kind", "schedule_of"),
    [*(("Adam", name) for name in SCHEDULES), *((kind, "MultiStepLR") for kind in OPTIMIZERS)],
)
def test_optimizers_and_schedules_continue_from_their_state(kind, schedule_of, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # which PyTorch sets for the whole process

    def made():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05)
        return model, optimizer, SCHEDULES[schedule_of](optimizer)

    def train(model, optimizer, schedule, steps):
        for step in steps:
            optimizer.zero_grad()
            (model(torch.ones(1, 3)) * (step + 1)).square().sum().backward()
            optimizer.step()
            schedule.step(*([1.0] if schedule_of == "ReduceLROnPlateau" else []))

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
     '{"dict": [[{"list": []}, 1]]}', '{"float": "x"}', "[" * 100_000],
)  # fmt: skip
def test_damaged_states_are_errors(text):
    arrays = {"a": np.frombuffer(text.encode(), np.uint8), "a/0": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match="a is not a state"):
        from_arrays("a", arrays)


def test_the_structure_is_readable():
    arrays = to_arrays("a", {"step": torch.ones(2), "lr": 0.1})
    assert json.loads(arrays["a"].tobytes()) == {"dict": [["step", {"tensor": "a/0", "dtype": "float32"}], ["lr", 0.1]]}
    assert np.array_equal(arrays["a/0"], np.ones(2))
