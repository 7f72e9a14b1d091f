"""TensorFlow's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.registry import MPI, RING, SINGLE, StrategyEntry
from hvdtrain.frameworks.styles import keras_fit
from hvdtrain.frameworks.tensorflow import strategies
from hvdtrain.frameworks.tensorflow.learner import TensorFlowLearner

ENTRIES = (
    StrategyEntry("single", "loop", strategies.TensorFlowStrategy, TensorFlowLearner, SINGLE),
    StrategyEntry("horovod", "loop", strategies.TensorFlowHorovod, TensorFlowLearner),
    StrategyEntry("mirrored", "loop", strategies.TensorFlowMirrored, TensorFlowLearner),
    StrategyEntry("multiworker", "loop", strategies.TensorFlowMultiWorker, TensorFlowLearner),
    StrategyEntry("ring", "loop", strategies.TensorFlowAllreduce, TensorFlowLearner, RING),
    StrategyEntry("mpi", "loop", strategies.TensorFlowAllreduce, TensorFlowLearner, MPI),
    StrategyEntry("single", "fit", keras_fit.KerasStrategy, keras_fit.KerasLearner, SINGLE),
    StrategyEntry("horovod", "fit", keras_fit.KerasHorovod, keras_fit.KerasLearner),
    StrategyEntry("mirrored", "fit", keras_fit.KerasMirrored, keras_fit.KerasLearner),
    StrategyEntry("multiworker", "fit", keras_fit.KerasMultiWorker, keras_fit.KerasLearner),
)
