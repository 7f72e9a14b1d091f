"""The moving average of a model's trained parameters, by --ema."""

from __future__ import annotations

import tensorflow as tf

from hvdtrain.frameworks.averages import share_of_weights
from hvdtrain.frameworks.tensorflow.objective import TensorFlowObjective
from hvdtrain.networks.description import Weights


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
