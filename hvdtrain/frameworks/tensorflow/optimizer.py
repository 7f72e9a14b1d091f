"""The training loop's optimizer in TensorFlow, fp16's loss scale, and averages of weights (--ema)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from hvdtrain.config.forms import Betas
from hvdtrain.config.options import Config
from hvdtrain.frameworks.averages import share_of_weights
from hvdtrain.frameworks.batches import scale_of_rows
from hvdtrain.frameworks.own_optimizers import numbers_of
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.frameworks.tensorflow import keras_versions
from hvdtrain.frameworks.tensorflow.keras_versions import FIRST_REPLICA
from hvdtrain.frameworks.tensorflow.network import why_no_graph
from hvdtrain.frameworks.tensorflow.objective import TensorFlowObjective
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.user import UserTask

OPTIMIZER = "optimizer"
"""Begins the names of the arrays of a task's own optimizer."""


def make_counter() -> tf.Variable:
    """An integer variable that a step can increment, 0 at first."""
    return tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=FIRST_REPLICA)


class TensorFlowOptimizer:
    """SGD, Adam or AdamW by TensorFlow's fused operations, which accept the learning rate of each step as a tensor.

    Keras' SGD keeps momentum times the learning rate; this operation keeps the plain sum of gradients, as PyTorch does,
    so that a schedule has the same effect in both. parameters: by canonical name. listed: those of them that may have
    constraints, as Keras lists them. Raises UserError for a pattern of --no-decay that matches none.
    """

    def __init__(self, config: Config, parameters: dict[str, tf.Variable], listed: Mapping[str, Any]) -> None:
        self._config, variables = config, list(parameters.values())
        self._constraints = [getattr(listed.get(name), "constraint", None) for name in parameters]
        without = without_decay(config.no_decay, parameters)
        self._variables = variables
        self._decays = [0.0 if name in without else config.weight_decay for name in parameters]
        kinds = ("mean", "square") if config.optimizer != "sgd" else ("momentum",) if config.momentum else ()
        self.slots = {
            kind: [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables] for kind in kinds
        }
        self.updates = make_counter()

    @property
    def variables(self) -> list[tf.Variable]:
        return [slot for slots in self.slots.values() for slot in slots] + [self.updates]

    def count(self, updates: int | tf.Tensor) -> None:
        """Count the update that follows (1), or that none does (0)."""
        self.updates.assign_add(updates)

    def apply(self, gradients: list[tf.Tensor], lr: tf.Tensor) -> None:
        """Update all variables."""
        for i, (variable, gradient, decay) in enumerate(zip(self._variables, gradients, self._decays, strict=True)):
            if decay and self._config.optimizer == "adamw":  # Loshchilov and Hutter (2019), times lr as in PyTorch
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=variable * (1 - lr * decay))
            elif decay:
                gradient += decay * variable
            slots = [slots[i].handle for slots in self.slots.values()]
            self._update(variable.handle, slots, gradient, lr)
            if constraint := self._constraints[i]:  # as Keras' optimizers do
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=constraint(variable))

    def _update(self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, lr: tf.Tensor) -> None:
        ops, config = tf.raw_ops, self._config
        if config.optimizer != "sgd":
            betas = Betas.parse(config.betas)
            beta1, beta2 = tf.constant(betas.beta1), tf.constant(betas.beta2)
            t = tf.cast(self.updates, tf.float32)
            # The operation adds "epsilon hat" instead of epsilon: Kingma and Ba (2015), section 2.
            epsilon = config.epsilon * tf.sqrt(1 - beta2**t)
            ops.ResourceApplyAdam(
                var=variable, m=slots[0], v=slots[1], beta1_power=beta1**t, beta2_power=beta2**t, lr=lr,
                beta1=beta1, beta2=beta2, epsilon=epsilon, grad=gradient,
            )  # fmt: skip
        elif config.momentum:
            ops.ResourceApplyMomentum(
                var=variable, accum=slots[0], lr=lr, grad=gradient, momentum=config.momentum,
                use_nesterov=config.nesterov,
            )  # fmt: skip
        else:
            ops.ResourceApplyGradientDescent(var=variable, alpha=lr, delta=gradient)


class KerasTaskOptimizer:
    """The optimizer that a task's optimizer() returns, with its own learning rate.

    parameters: by name, as Keras lists them. Raises UserError for anything else than a new optimizer of Keras.
    """

    slots: dict[str, list[tf.Variable]] = {}  # noqa: RUF012  (never written to: of the options' optimizers)

    def __init__(self, task: UserTask, parameters: dict[str, Any]) -> None:
        self.keras = task.call("optimizer", list(parameters.items()))
        if not isinstance(self.keras, tf.keras.optimizers.Optimizer):
            problem = f"returned {type(self.keras).__name__}"
            raise task.error("optimizer", problem, "return one tf.keras.optimizers.Optimizer")
        self._variables = list(parameters.values())
        task.guard("the optimizer's build()", self.keras.build, self._variables)
        self._compile(task)
        self.updates = self.keras.iterations

    def _compile(self, task: UserTask) -> None:
        """Make a graph of an update, which fails for an optimizer that was built for other variables, or is wrong."""
        gradients = [tf.TensorSpec(variable.shape, tf.float32) for variable in self._variables]
        inner = getattr(self.keras, "inner_optimizer", self.keras)
        try:
            for _ in range(2):  # the first one may set numbers for all that follow
                before = numbers_of(inner)
                tf.function(lambda *given: self.apply([*given], tf.zeros(()))).get_concrete_function(*gradients)
                if numbers_of(inner) == before:
                    break
        except Exception as error:
            problem = f"returned one that cannot update the parameters ({why_no_graph(error):.300})"
            raise task.error("optimizer", problem, "return a new optimizer of Keras on each call") from error
        known = set(map(id, (*self.variables, *self._variables)))
        changed = numbers_of(inner).items() - before.items()
        own = [name for name, one in vars(inner).items() if isinstance(one, tf.Variable) and id(one) not in known]
        lost = [*(name for name, _ in changed), *(name for name in own if not name.endswith("learning_rate"))]
        if lost:
            problem = f"returned {type(inner).__name__}, whose {min(lost)} is not one of its variables, which are saved"
            raise task.error("optimizer", problem, "make it one, by add_variable(), or use another optimizer")

    @property
    def variables(self) -> list[Any]:
        return list(self.keras.variables)

    @property
    def averages(self) -> list[Any]:
        """Of the parameters, with use_ema; else none."""
        inner = getattr(self.keras, "inner_optimizer", self.keras)
        return list(inner._model_variables_moving_average) if inner.use_ema else []

    @property
    def learning_rate(self) -> float:
        """That of the latest update; before, that of the first one."""
        return keras_versions.latest_learning_rate(self.keras)

    def settings(self) -> dict[str, Any]:
        """For `Learner.settings`. Not get_config(), which a user's own schedule need not have."""
        public = {name: number for name, number in numbers_of(self.keras).items() if name[0] != "_"}
        return {"learning rate": self.learning_rate, **public, "updates": int(self.keras.iterations)}

    def count(self, updates: int | tf.Tensor) -> None:
        del updates  # Keras' optimizers count by themselves

    def apply(self, gradients: list[tf.Tensor], lr: tf.Tensor) -> None:
        """Update all variables."""
        keras_versions.apply_gradients(self.keras, gradients, self._variables)

    def _named(self) -> dict[str, Any]:
        """The state by number and kind, as the rest of Keras' names contains the number of models made before."""
        kinds = map(keras_versions.kind_of_slot, self.variables)
        pairs = enumerate(zip(kinds, self.variables, strict=True))
        return {f"{OPTIMIZER}/{number}/{kind}": variable for number, (kind, variable) in pairs}

    def arrays(self) -> Weights:
        """The state: as one of other settings, such as use_ema, has other names, it is not taken for it."""
        return {name: variable.numpy() for name, variable in self._named().items()}

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned."""
        for name, variable in self._named().items():
            variable.assign(arrays[name])


class LossScale:
    """fp16's dynamic loss scale; 1 in other precisions.

    It is halved if gradients overflow, and doubled after GROWTH_STEPS steps without overflow (Micikevicius et al.,
    Mixed Precision Training, 2018).
    """

    INITIAL = 65536.0
    GROWTH_STEPS = 2000

    def __init__(self, enabled: bool, ranks: int) -> None:
        self._enabled, self._rows = enabled, scale_of_rows(ranks)
        initial = self.INITIAL / self._rows
        self.value = tf.Variable(initial if enabled else 1.0, trainable=False, aggregation=FIRST_REPLICA)
        self.good_steps = make_counter()

    def apply(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.value if self._enabled else loss

    def remove(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return [gradient / self.value for gradient in gradients] if self._enabled else gradients

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as in one process; nothing in other precisions, which have no scale."""
        if not self._enabled:
            return {}
        return {"loss_scale": float(self.value.numpy()) * self._rows, "good_steps": int(self.good_steps.numpy())}

    def load(self, state: dict[str, Any]) -> None:
        """Set what `state` returned; a state without a scale leaves the initial one."""
        if self._enabled and "loss_scale" in state:
            self.value.assign(state["loss_scale"] / self._rows)
            self.good_steps.assign(state["good_steps"])

    def update(self, finite: tf.Tensor) -> None:
        """Adapt the scale after a step whose gradients were finite, or were not."""
        if not self._enabled:
            return
        grown = self.good_steps + 1 >= self.GROWTH_STEPS
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        self.value.assign(self.value * factor)
        self.good_steps.assign(tf.where(tf.logical_and(finite, tf.logical_not(grown)), self.good_steps + 1, 0))


class TensorFlowAverages:
    """The average of the weights after each update, made by the step's graph; none before the first one."""

    def __init__(self, decay: float, objective: TensorFlowObjective) -> None:
        self._decay, self._objective, self._parameters = decay, objective, objective.parameters
        self._averages = {
            name: tf.Variable(tf.zeros_like(variable), trainable=False) for name, variable in self._parameters.items()
        }
        self._share, self._has_begun = tf.Variable(1.0, trainable=False), tf.Variable(False, trainable=False)

    def begin(self, step: int) -> None:
        """Begin the step with this number, counted from 0."""
        self._share.assign(share_of_weights(self._decay, step))

    def update(self) -> None:
        """Take the weights after an update; called inside of a step."""
        share = tf.where(self._has_begun, self._share, 1.0)
        for name, average in self._averages.items():
            difference = self._parameters[name] - average
            average.assign_add(tf.cast(share, difference.dtype) * difference)
        self._has_begun.assign(True)

    def arrays(self) -> Weights:
        """The averages by name; empty before the first update."""
        if not self._has_begun.numpy():
            return {}
        return {name: self._objective.to_canonical(name, average.numpy()) for name, average in self._averages.items()}

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned."""
        self._has_begun.assign(bool(arrays))
        for name, average in self._averages.items():
            if arrays:
                average.assign(self._objective.from_canonical(name, arrays[name]))
            else:
                average.assign(tf.zeros_like(average))


class KerasOwnAverages:
    """The weights with which fit() ends by an optimizer of Keras with use_ema, which its updates make.

    parameters: by name, as Keras lists them.
    """

    def __init__(self, averages: list[Any], parameters: dict[str, Any], objective: TensorFlowObjective) -> None:
        self._averages, self._parameters, self._objective = averages, parameters, objective

    def begin(self, step: int) -> None:
        """Begin the step with this number, counted from 0: the first one from the weights of now, as in Keras 2."""
        for average, variable in zip(self._averages, self._parameters.values(), strict=True) if step == 0 else ():
            average.assign(variable)

    def arrays(self) -> Weights:
        named = zip(self._parameters, self._averages, strict=True)
        return {name: self._objective.to_canonical(name, average.numpy()) for name, average in named}

    def load(self, arrays: Weights) -> None:
        """Nothing: they are in the optimizer's state."""
