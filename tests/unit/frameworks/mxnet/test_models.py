"""What a Gluon block may do besides computing: a task's steps end at the weights of a loop with Gluon's Trainer.

Each piece of `support/drawn` alone; `fuzz/test_drawn_models.py` combines them.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp
from mxnet.gluon import nn
from support.drawn.of_mxnet import LOSSES, OPTIMIZERS, PIECES, dense, model_of
from support.drawn_models import CLASSES
from support.errors import refused
from support.model_steps import assert_close, check, learner_of, made, of_pieces, task_of, tried

from hvdtrain.errors import UserError


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("piece", tried(PIECES))
def test_a_piece_trains_as_with_gluons_trainer(piece):
    check(of_pieces("mxnet", piece))


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("losses", tried(LOSSES))
def test_losses_train_as_with_gluons_trainer(losses):
    check(of_pieces("mxnet", "dense", losses=losses))


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("optimizer", tried(OPTIMIZERS))
def test_an_optimizer_of_a_task_trains_as_with_gluons_trainer(optimizer):
    check(of_pieces("mxnet", "dense", optimizer=optimizer))


@pytest.mark.parametrize("optimizer", [name for name, piece in OPTIMIZERS.items() if piece.outside])
def test_an_optimizer_that_keeps_what_no_checkpoint_has_is_refused(optimizer):
    refused(lambda: learner_of(of_pieces("mxnet", "dense", optimizer=optimizer)), "so that a resumed run differs")


def test_the_trial_before_training_leaves_the_block_as_it_was():
    drawn, values = of_pieces("mxnet", *(name for name in tried(PIECES) if "branch" not in name)), {}

    def model():
        block = model_of(drawn)
        block.initialize()
        block(mx.nd.array(drawn.data[0][0][:4]))
        values.update({name: p.data().asnumpy() for name, p in block._collect_params_with_prefix().items()})
        return block

    task = task_of(drawn, model=staticmethod(model))
    weights = learner_of(drawn, task).weights()  # of which shared ones have one name
    assert_close(weights, {name: values[name] for name in weights}, 0)
    of_branch = learner_of(of_pieces("mxnet", "branch", "batch norm")).weights()
    moving = [value for name, value in of_branch.items() if "running_mean" in name]
    assert len(moving) == 2 and not np.any(moving)


def adding():
    layer = dense(CLASSES)
    layer.weight.grad_req = "add"
    return layer


class Lonely(nn.HybridSequential):
    """Has a layer that it does not call, and that does not know its inputs."""

    def __init__(self):
        super().__init__()
        self.add(dense(CLASSES))
        self.add(dense(in_units=0))

    def hybrid_forward(self, F, x):
        return self[0](x)


@pytest.mark.parametrize(("model", "named"), [(adding, "weight"), (Lonely, "1.weight")])
def test_what_cannot_be_trained_is_an_error_before_the_first_step(model, named):
    with pytest.raises(UserError) as caught:
        learner_of(of_pieces("mxnet"), made("mxnet", model))
    assert f" {named}" in caught.value.reason and caught.value.option == "model"


def test_a_run_in_fp32_after_one_in_bf16_is_an_error(monkeypatch):
    monkeypatch.setattr(amp.amp, "_amp_initialized", True)  # as of a run in bf16, which would cast all later tests
    with pytest.raises(UserError) as caught:
        learner_of(of_pieces("mxnet", "dense"))
    assert caught.value.option == "precision"


@pytest.mark.parametrize("kind", ["complex64", "int16", "uint32"])
def test_rows_of_a_type_that_mxnet_lacks_are_an_error_before_the_first_step(kind):
    rows = np.zeros((8, 4), kind), np.zeros(8, np.int64)
    with pytest.raises(UserError, match=f"MXNet has no arrays of {kind}; let data"):
        learner_of(drawn := of_pieces("mxnet", "dense"), task_of(drawn, data=lambda self: (rows, rows)))
