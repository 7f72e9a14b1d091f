"""What differs between Keras 2 and Keras 3, of which `tf.keras` is one (`TF_USE_LEGACY_KERAS`)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

IS_KERAS_3 = hasattr(tf.keras, "ops")
PACKAGES = {"tf_keras": 2, "keras": 3}
"""Those that a `tf.keras` can be, since TensorFlow 2.16."""
GENERATOR_STATES = ("StateVar", "seed_generator_state")
"""The names of the variables of a `tf.random.Generator` and of a `keras.random.SeedGenerator`."""
# All replicas update their copies of a variable in the same way, so any copy has its value.
FIRST_REPLICA = tf.VariableAggregation.ONLY_FIRST_REPLICA
UNNAMED = re.compile(r"variable(_\d+)?")  # what Keras 3 calls a variable without a name
RECEIVED = ("Call arguments received by layer", "Arguments received by")
"""What follows these words in an error are the arguments of a layer."""


def to_tensorflow(variable: Any) -> tf.Variable:
    """TensorFlow's variable of one that Keras lists: those of Keras 3 are its own, around TensorFlow's."""
    return variable.value if IS_KERAS_3 and isinstance(variable, tf.keras.Variable) else variable


def by_name(variables: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    """Variables by number and kind, such as `0.kernel`: the last part of their names, without its number.

    Keras 3 numbers those without a name by all that the process has made; here their numbers begin at 0.
    """
    kinds = [variable.name.rpartition("/")[2].partition(":")[0] for variable in variables]
    unnamed = sorted(filter(UNNAMED.fullmatch, {*kinds}), key=lambda kind: (len(kind), kind))
    numbered = {kind: f"variable_{number}".removesuffix("_0") for number, kind in enumerate(unnamed)}
    return {f"{i}.{numbered.get(kind, kind)}": variables[i] for i, kind in enumerate(kinds)}


def create_for_first_replica(following: Any, **options: Any) -> tf.Variable:
    """Make a variable, as `tf.variable_creator_scope` asks for it.

    Of one that is not trained, each rank has the value of its first device; Keras 2 and 3 have other words for that.
    """
    if options.get("trainable") is False:
        options |= {"synchronization": tf.VariableSynchronization.AUTO, "aggregation": FIRST_REPLICA}
    return following(**options)


def other_keras(kind: type) -> int | None:
    """The number of the Keras that a class comes from; None unless it is another one than `tf.keras`."""
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    others = packages & PACKAGES.keys() - {tf.keras.Model.__module__.partition(".")[0]}
    return PACKAGES[others.pop()] if others else None


def keeps_losses(model: tf.keras.Model) -> bool:
    """Whether a model that was called has the losses of this call, also where other threads call it.

    Layers of Keras 3 have one list for all threads, of add_loss() and of regularizers of activities; those of weights
    are not in it.
    """
    of_weights = [v for v in model.trainable_variables if IS_KERAS_3 and v.regularizer]
    return not IS_KERAS_3 or len(model.losses) <= len(of_weights)


def global_settings() -> dict[str, str]:
    """What Keras keeps for all models of a process, and their computations depend on."""
    names = ("backend", "floatx", "image_data_format", "epsilon")
    values = {name: str(getattr(tf.keras.backend, name)()) for name in names}
    return {"policy": tf.keras.mixed_precision.global_policy().name, **values}


@contextlib.contextmanager
def drawing_from_generators() -> Iterator[None]:
    """Layers made inside draw random numbers from generators whose state can be set; in Keras 3 all do."""
    if IS_KERAS_3:
        yield
        return
    random = tf.keras.backend.experimental
    has_generators = random.is_tf_random_generator_enabled()
    random.enable_tf_random_generator()
    try:
        yield
    finally:
        if not has_generators:
            random.disable_tf_random_generator()


def apply_gradients(optimizer: Any, gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
    """Update variables as Keras lists them by one of its optimizers; the gradients are combined, and not scaled."""
    if IS_KERAS_3:  # whose fit multiplies the loss by a scale, and whose optimizers divide gradients by it
        gradients = [gradient * optimizer.scale_loss(1.0) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    else:
        optimizer.apply_gradients(zip(gradients, variables, strict=True), skip_gradients_aggregation=True)


class KerasOptimizer(tf.keras.optimizers.Optimizer):
    """What hvdtrain's optimizers for `fit` derive from."""

    def __init__(self, learning_rate: float, name: str, **options: Any) -> None:
        if IS_KERAS_3:
            super().__init__(learning_rate=learning_rate, name=name, **options)
            return
        super().__init__(name=name, **{"jit_compile": False, **options})
        self._learning_rate = self._build_learning_rate(learning_rate)

    def number_of(self, variable: Any) -> int:
        """The place of a variable among those that it was built with."""
        return self._get_variable_index(variable) if IS_KERAS_3 else self._index_dict[self._var_key(variable)]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return config if IS_KERAS_3 else config | {"learning_rate": self._serialize_hyperparameter(self._learning_rate)}


def latest_learning_rate(optimizer: Any) -> float:
    """Learning rate of the latest update; before the first one, that of the first."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    optimizer = next(iter(getattr(optimizer, "optimizers", ())), optimizer)  # the first of a MultiOptimizer
    rate, updates = optimizer._learning_rate, optimizer._iterations
    # Not optimizer.learning_rate: in Keras 3 that of the next update, in Keras 2 not that of a loaded state.
    if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(max(int(updates) - 1, 0))
    elif callable(rate):  # it may read the number of updates
        latest = min(int(updates), 1)
        updates.assign_sub(latest)
        rate = rate()
        updates.assign_add(latest)
    return float(tf.convert_to_tensor(rate))


def kind_of_slot(variable: Any) -> str:
    """The part of the name of an optimizer's variable that does not contain the number of models made before."""
    name = str(variable.name)
    if not IS_KERAS_3:
        return name.partition("/")[0]
    return "variable" if UNNAMED.fullmatch(name) else name.rpartition("_")[2]


def message_of(error: BaseException) -> str:
    """An error without what Keras adds: the arguments of a layer, and in Keras 3 codes of terminals."""
    text = str(error).replace("\x1b[1m", "").replace("\x1b[0m", "")
    for words in RECEIVED:
        text, _, _ = text.partition(words)
    return text.strip()
