"""As user_loop.py, in Gluon."""

import os
import random
import signal

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hvdtrain

KILL_AT, LEAVE_AT = int(os.environ.get("KILL_AT", "0")), int(os.environ.get("LEAVE_AT", "0"))
STATE = "STATE" in os.environ
NUMBERS = np.random.default_rng(0).normal(size=(230, 4)).astype(np.float32)
ROWS = NUMBERS, (NUMBERS[:, 0] * NUMBERS[:, 1] > 0).astype(np.float32)
TEST = tuple(array[:70] for array in ROWS)


class Noisy(mx.optimizer.Adam):
    def update(self, index, weight, grad, state):
        if STATE:
            grad = grad + 1e-4 * mx.nd.random.normal(shape=grad.shape)
        super().update(index, weight, grad, state)


with hvdtrain.start(framework="mxnet") as run:
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Dense(16, in_units=4))
    if STATE:
        model.add(gluon.nn.BatchNorm(in_channels=16), gluon.nn.Dropout(0.2))
    model.add(gluon.nn.Activation("tanh"), gluon.nn.Dense(2, in_units=16))
    model.initialize(mx.init.Xavier())
    model[0].collect_params().setattr("lr_mult", 2)
    model[-1].bias.grad_req = "null"
    schedule = mx.lr_scheduler.MultiFactorScheduler([5, 9], 0.5, base_lr=0.01)
    optimizer = Noisy(learning_rate=0.01, lr_scheduler=schedule)
    model, trainer = run.setup(model, gluon.Trainer(model.collect_params(), optimizer))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def losses(numbers, labels):
        return loss(model(numbers), labels)

    resumed = None
    for batch in run.batches(ROWS, TEST, lambda *rows: (losses(*rows), {"loss squared": losses(*rows) ** 2})):
        resumed = run.steps if resumed is None else resumed
        if KILL_AT and run.steps == KILL_AT and not resumed and run.rank == run.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers, labels = batch
        if STATE:
            numbers = numbers + mx.nd.random.normal(shape=numbers.shape) * np.random.rand() * random.random()
        with autograd.record():
            found = losses(numbers, labels)
        if not run.step(found):  # another shard of the step follows
            continue
        if STATE:
            schedule.base_lr *= 0.99
        if LEAVE_AT and run.steps + 1 == LEAVE_AT:
            break
print(f"after the run: {run.steps} steps, {run.epoch} epochs, on {run.device}")
