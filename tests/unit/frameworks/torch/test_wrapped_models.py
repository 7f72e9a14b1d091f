"""The model that a script gets from setup() has the methods of its own one, and must be the one that is called."""

import numpy as np
import pytest
import torch
from support.user_loop_runs import NUMBERS, starter
from torch import nn

from hvdtrain.errors import UserError

ROWS = NUMBERS, (NUMBERS[:, 0] > 0).astype(np.int64)


class Model(nn.Linear):
    """With a method and attributes of its own."""

    kind = "linear"

    def __init__(self):
        super().__init__(4, 2)
        self.calls = 0

    def generate(self, rows):
        self.calls += 1
        return self(rows)


@pytest.fixture(params=["ddp", "dataparallel", "single"])
def start(request, tmp_path):
    begin = starter(tmp_path / "runs")
    yield lambda **options: begin(strategy=request.param, **options)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def losses(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def test_a_wrapped_model_has_the_methods_of_the_own_one(start):
    with start() as run:
        inner = Model()
        model, _ = run.setup(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
        with torch.no_grad():
            assert torch.equal(model.generate(torch.zeros(1, 4)), inner(torch.zeros(1, 4)))
        assert (model.kind, model.calls, model.in_features) == ("linear", 1, 4)
        assert not hasattr(model, "nothing")
        for rows, labels in run.batches(ROWS):
            run.step(losses(model(rows), labels))


@pytest.mark.parametrize("bypass", [lambda model: model.generate, lambda model: getattr(model, "module", model)])
def test_losses_of_another_call_than_the_model_are_an_error_where_they_would_not_be_combined(start, bypass):
    wraps = None
    try:
        with start() as run:
            inner = Model()
            model, _ = run.setup(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
            wraps = isinstance(model, nn.parallel.DistributedDataParallel)
            for rows, labels in run.batches(ROWS):
                run.step(losses(bypass(model)(rows), labels))
        assert not wraps
    except UserError as error:
        assert wraps and "horovod" in error.remedy
