"""What a PyTorch model may do besides computing: a task's steps end at the weights of PyTorch's own loop.

Each piece and form of `support/drawn` alone; `fuzz/test_drawn_models.py` combines them.
"""

import pytest
import torch
from support.drawn.of_torch import LOSSES, OPTIMIZERS, PIECES, Layer, linear, squares
from support.drawn_models import CLASSES, FEATURES
from support.errors import refused
from support.learners import learner
from support.model_steps import GRADIENTS, assert_close, batches, check, learner_of, made, of_pieces, task_of, tried
from torch import nn

from hvdtrain.errors import UserError
from hvdtrain.frameworks.torch.strategies import Distributed, TorchDDP

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*weight_norm:FutureWarning",
    "ignore:Full backward hook",
    "ignore:None of the inputs",
    "ignore:Please use quant_min",
    "ignore:.*deprecated",
)


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("piece", [name for name in tried(PIECES) if name not in GRADIENTS])
def test_a_piece_trains_as_in_pytorchs_own_loop(piece):
    check(of_pieces("torch", piece))


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("losses", tried(LOSSES))
def test_a_form_of_outputs_and_losses_trains_as_in_pytorchs_own_loop(losses):
    check(of_pieces("torch", "linear", losses=losses))


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("optimizer", tried(OPTIMIZERS))
def test_an_optimizer_of_a_task_trains_as_in_pytorchs_own_loop(optimizer):
    check(of_pieces("torch", "linear", optimizer=optimizer))


@pytest.mark.parametrize("optimizer", [name for name, piece in OPTIMIZERS.items() if piece.outside])
def test_an_optimizer_that_keeps_what_no_checkpoint_has_is_refused(optimizer):
    refused(lambda: learner_of(of_pieces("torch", "linear", optimizer=optimizer)), "so that a resumed run differs")


def test_a_model_that_torch_exported_trains_as_the_original_one(tmp_path):
    """Alone and in another module, whose modes its own would refuse; with evaluations and a resume."""

    def original():
        return nn.Sequential(linear(), nn.Tanh(), nn.Linear(FEATURES, CLASSES))

    def exported():
        rows = {0: torch.export.Dim("rows", min=1)}
        return torch.export.export(original(), (torch.zeros(4, FEATURES),), dynamic_shapes=(rows,)).module()

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.dropout = exported(), nn.Dropout(0.0)

        def forward(self, x):
            return self.inner(self.dropout(x))

    drawn = of_pieces("torch", "linear")
    expected = learner_of(drawn, made("torch", original))
    others = {"": learner_of(drawn, made("torch", exported)), "inner.": learner_of(drawn, made("torch", Around))}
    for batch in batches(drawn):
        losses = [one.evaluate(drawn.data[1]).loss for one in (expected, *others.values())]
        assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-5)
        for trained in (expected, *others.values()):
            trained.train_step(batch)
    for prefix, trained in others.items():
        assert_close(trained.weights(), {f"{prefix}{name}": value for name, value in expected.weights().items()})


@pytest.mark.parametrize("strategy", ["dataparallel", "manual"])
@pytest.mark.parametrize(
    "pieces",
    [("shared", "branch", "always clipped weight", "weight norm", "frozen batch norm"), ("complex parameters",)],
)
def test_devices_of_one_process_train_as_in_pytorchs_own_loop(strategy, pieces):
    check(of_pieces("torch", *pieces, losses="dict"), strategy=strategy)


@pytest.mark.parametrize(
    ("options", "piece"),
    [
        ({"strategy": "dataparallel"}, "running mean, assigned"),
        ({"strategy": "dataparallel"}, "old weight norm"),
        ({"strategy": "manual"}, "running mean, assigned"),
        ({"strategy": "manual"}, "hooks"),
        ({"shards": 4}, "growing buffers"),
    ],
)
def test_what_copies_on_devices_or_shards_would_lose_is_an_error_before_the_first_step(options, piece):
    with pytest.raises(UserError) as caught:
        check(of_pieces("torch", piece), **options)
    assert caught.value.option == "strategy" or "shards" in options


@pytest.mark.parametrize("strategy", ["dataparallel", "manual"])
def test_devices_of_one_process_keep_the_state_of_bfloat16_parameters(strategy):
    drawn = of_pieces("torch", "bfloat16 parameters")
    first, second = (learner_of(drawn, strategy=strategy) for _ in range(2))
    *early, last = batches(drawn)
    for batch in early:
        first.train_step(batch)
    second.load(first.weights())
    second.load_optimizer_state(first.optimizer_state())
    for each in (first, second):
        each.train_step(last)
    assert_close(second.weights(), first.weights(), 0)


def test_modes_and_attributes_that_may_surprise():
    def advice(piece):
        task = task_of(of_pieces("torch", piece))
        learner("torch", task)
        return task.problems(task.dataset)

    (warning,) = advice("counter")
    assert " 2.calls" in warning
    assert advice("frozen batch norm") == []
    whole = learner_of(of_pieces("torch"), made("torch", lambda: nn.BatchNorm1d(FEATURES).eval()))
    assert all(module.training for module in whole._model.modules()), "a model in evaluation mode as a whole"


class Making(nn.Module):
    """Makes a buffer of which nobody knows before."""

    def forward(self, x):
        self.register_buffer("scale", torch.ones(1))
        return x * self.scale


class Stateful(nn.Linear):
    """Has state that is no tensor."""

    def get_extra_state(self):
        return {"calls": 0}


def sparse():
    return Layer(lambda module, x: module.layer((x[:, 0] > 0).long()), lambda: nn.Embedding(3, FEATURES, sparse=True))


def unlazy():
    """Does not call its lazy module."""
    return Layer(lambda module, x: module.layer(x), lonely=nn.LazyLinear(3))


def of_float16():
    return Layer(
        lambda module, x: x * module.scale, nn.Identity, scale=nn.Parameter(torch.ones(1, dtype=torch.float16))
    )


def complex_squares(outputs, labels):
    return squares(torch.complex(outputs, outputs)[:, :CLASSES], labels)


@pytest.mark.parametrize(
    ("model", "losses", "options", "named"),
    [
        (linear, complex_squares, {}, "complex"),
        (lambda: nn.Sequential(linear(), Making()), None, {}, "1.scale"),
        (unlazy, None, {}, "lonely.weight"),
        (lambda: linear().to(torch.complex128), None, {}, "complex128"),
        (lambda: Stateful(FEATURES, FEATURES), None, {}, "_extra_state is of type dict"),
        (sparse, None, {}, "sparse gradients"),
        (nn.LazyBatchNorm2d, None, {}, "float32"),
        (of_float16, None, {"precision": "fp16"}, " scale "),  # has no loss scale
    ],
)
def test_what_cannot_be_trained_is_an_error_before_the_first_step(model, losses, options, named):
    task = made("torch", model, losses or (lambda outputs, labels: outputs.sum(1)))
    with pytest.raises(UserError) as caught:
        learner_of(of_pieces("torch"), task, **options)
    assert named in caught.value.reason and caught.value.option == ("precision" if options else "model")


def test_reentrant_checkpoints_where_ddp_looks_for_unused_parameters_are_an_error_with_a_remedy(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = Distributed(PIECES["reentrant checkpoint"].make(), find_unused_parameters=True)
        with pytest.raises(UserError, match="use_reentrant=False"), TorchDDP.backward(None):
            model(torch.ones(2, FEATURES, requires_grad=True)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
