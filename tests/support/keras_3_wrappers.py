"""Each use of Horovod's wrappers with Keras 3 on the ranks of a job; rank 0 writes what each gave into uses.json.

A use gives a text of what differs from what it must give, which is empty.
"""

from __future__ import annotations

import json
from pathlib import Path

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf

hvd.init()
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
Y = X[:, :1] * 2
HERE = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
ALL = slice(0, 8)


def made(seed: int = 0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, bias_initializer="ones"), keras.layers.Dense(1)])


def fitted(optimizer, rows, callbacks=(), seed=0):
    model = made(seed)
    model.compile(optimizer, "mse")
    model.fit(X[rows], Y[rows], len(X[rows]), 3, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def difference(model, expected, tolerance=1e-5) -> str:
    """Between the weights of models, of which those of the first are the same on all ranks."""
    arrays = model.get_weights()
    for of_rank in hvd_tf.allgather_object([array.tobytes() for array in arrays]):
        if of_rank != [array.tobytes() for array in arrays]:
            return "ranks differ"
    far = [float(abs(a - b).max()) for a, b in zip(arrays, expected.get_weights(), strict=True)]
    return "" if max(far) < tolerance else f"{max(far)} from one process"


def of_optimizer(make, tolerance=1e-5, **options) -> str:
    return difference(fitted(hvd.DistributedOptimizer(make(), **options), HERE), fitted(make(), ALL), tolerance)


def without_decay(rate=0.01):
    """Decays all variables but biases, which are ones in `made`."""
    optimizer = keras.optimizers.AdamW(rate, weight_decay=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def of_two_optimizers() -> str:
    made = keras.optimizers
    return of_optimizer(lambda: made.MultiOptimizer(made.OptimizerMap(sgd(), {".*bias": made.Adam(0.1)})))


def of_state() -> str:
    """Of an optimizer that has made updates before it is wrapped, twice."""
    trained = []
    for wrap, rows in (
        (lambda optimizer: hvd.DistributedOptimizer(hvd.DistributedOptimizer(optimizer)), HERE),
        (lambda optimizer: optimizer, ALL),
    ):
        model = fitted(sgd(), ALL)
        model.compile(wrap(model.optimizer), "mse")
        model.fit(X[rows], Y[rows], len(X[rows]), 3, shuffle=False, verbose=0)
        trained.append(model)
    return difference(*trained)


def of_half() -> str:
    """Gradients overflow on rank 1 until the scale of the loss is small enough."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1, dtype="float32")])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.001))
        model.compile(optimizer, "mse", jit_compile=False)
        model.set_weights([np.full(array.shape, 0.1) for array in model.get_weights()])
        factor = 10.0 if hvd.rank() == 1 else 0.01
        model.fit(X[HERE] * factor, Y[HERE] * factor, 4, 12, shuffle=False, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    updates = int(optimizer.iterations)
    return difference(model, model) or ("" if 0 < updates < 12 else f"{updates} of 12 updates")


def of_loss_scale() -> str:
    return of_optimizer(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))


def of_broadcast() -> str:
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model = fitted(hvd.DistributedOptimizer(sgd()), HERE, first, seed=hvd.rank())
    return difference(model, model)  # after the first step, as in Keras 2


def of_rates() -> str:
    callbacks = hvd.callbacks
    rates = (
        [callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5**epoch)],
        [callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, steps_per_epoch=1)],
    )
    ends = [
        float(fitted(hvd.DistributedOptimizer(sgd()), HERE, some).optimizer.learning_rate.numpy()) for some in rates
    ]
    return "" if np.allclose(ends, [0.025, 0.1]) else str(ends)


def of_tape() -> str:
    model, expected = made(hvd.rank()), made(0)
    for inplace in (False, True):
        hvd_tf.broadcast_variables(model.variables, 0, inplace=inplace)
    gradients = []
    for of, rows in ((model, HERE), (expected, ALL)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((of(X[rows]) - Y[rows]) ** 2)
        tape = hvd_tf.DistributedGradientTape(tape, groups=[of.trainable_variables]) if of is model else tape
        gradients.append(tape.gradient(loss, of.trainable_variables))
    far = max(float(tf.reduce_max(abs(a - b))) for a, b in zip(*gradients, strict=True))
    return difference(model, expected) or ("" if far < 1e-5 else f"{far} from one process")


class Alike(keras.Model):
    """Has two layers of one name, whose variables then have the same names, and a variable without a gradient."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1, name="alike") for _ in range(2)]
        self.unused = keras.Variable(np.ones(2, np.float32))
        for part in self.parts:
            part.build((None, 4))

    def call(self, x):
        return sum(part(x) for part in self.parts)


def of_names(combine) -> str:
    """Gradients in groups of variables: one of all that have some, and one of the variable that has none."""
    trained = []
    for rows in (HERE, ALL):
        keras.utils.set_random_seed(0)
        model, optimizer = Alike(), sgd()
        groups = [[*model.parts[0].trainable_variables, *model.parts[1].trainable_variables], [model.unused]]
        if rows is HERE and combine == "optimizer":
            optimizer = hvd.DistributedOptimizer(optimizer, groups=groups)
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(X[rows]) - Y[rows]) ** 2)
            if rows is HERE and combine == "tape":
                tape = hvd_tf.DistributedGradientTape(tape, groups=groups)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            given = [(tf.zeros_like(v.value) if g is None else g, v) for g, v in zip(gradients, variables, strict=True)]
            optimizer.apply_gradients(given)
        trained.append(model)
    return difference(*trained)


def of_elastic() -> str:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model, expected = made(), made()
    model.compile(optimizer, "mse")
    state = hvd.elastic.KerasState(model, optimizer, epoch=0)
    state.save()
    model.fit(X[HERE], Y[HERE], verbose=0)
    state.restore()
    state.sync()
    return difference(model, expected)


def of_saving() -> str:
    model = fitted(hvd.DistributedOptimizer(sgd()), HERE)
    path = f"model-{hvd.rank()}.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    return difference(loaded, model) or ("" if "horovod" not in str(type(loaded.optimizer)) else "it is Horovod's")


def refused(use) -> str:
    try:
        use()
    except (ValueError, TypeError):
        return ""
    return "no error"


def sgd(**options):
    return keras.optimizers.SGD(0.1, 0.9, **options)


USES = {
    "DistributedOptimizer": lambda: of_optimizer(sgd),
    "Adam": lambda: of_optimizer(lambda: keras.optimizers.Adam(0.1)),
    "a schedule": lambda: of_optimizer(
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
    ),
    "a rate that is a function": lambda: of_optimizer(lambda: keras.optimizers.SGD(lambda: 0.1)),
    "exclude_from_weight_decay": lambda: of_optimizer(without_decay),
    "MultiOptimizer": of_two_optimizers,
    "an optimizer with a state": of_state,
    "mixed_float16": of_half,
    "compression": lambda: of_optimizer(sgd, 1e-2, compression=hvd.Compression.fp16, groups=2),
    "gradient_accumulation_steps": lambda: of_optimizer(lambda: sgd(gradient_accumulation_steps=2)),
    "global_clipnorm": lambda: of_optimizer(lambda: sgd(global_clipnorm=0.1)),
    "LossScaleOptimizer": of_loss_scale,
    "BroadcastGlobalVariablesCallback": of_broadcast,
    "LearningRateScheduleCallback": of_rates,
    "DistributedGradientTape": of_tape,
    "a tape, layers of one name": lambda: of_names("tape"),
    "an optimizer, layers of one name": lambda: of_names("optimizer"),
    "elastic.KerasState": of_elastic,
    "saving": of_saving,
    "backward_passes_per_step": lambda: refused(lambda: hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)),
    "load_model": lambda: refused(lambda: hvd.load_model("model.keras")),
    "SyncBatchNormalization": lambda: refused(hvd_tf.SyncBatchNormalization),
}

if __name__ == "__main__":
    problems = {name: use() for name, use in USES.items()}
    if hvd.rank() == 0:
        Path("uses.json").write_text(json.dumps(problems))
