"""TensorFlow's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.registry import StrategyEntry
from hvdtrain.frameworks.styles import keras_fit
from hvdtrain.frameworks.tensorflow import strategies
from hvdtrain.frameworks.tensorflow.learner import TensorFlowLearner

ENTRIES = (
    StrategyEntry("single", "loop", strategies.TensorFlowSingleProcess, TensorFlowLearner),
    StrategyEntry("horovod", "loop", strategies.TensorFlowHorovod, TensorFlowLearner),
    StrategyEntry("mirrored", "loop", strategies.TensorFlowMirrored, TensorFlowLearner),
    StrategyEntry("multiworker", "loop", strategies.TensorFlowMultiWorker, TensorFlowLearner),
    StrategyEntry("ring", "loop", strategies.TensorFlowRing, TensorFlowLearner),
    StrategyEntry("mpi", "loop", strategies.TensorFlowMPI, TensorFlowLearner),
    StrategyEntry("single", "fit", keras_fit.KerasSingleProcess, keras_fit.KerasLearner),
    StrategyEntry("horovod", "fit", keras_fit.KerasHorovod, keras_fit.KerasLearner),
    StrategyEntry("mirrored", "fit", keras_fit.KerasMirrored, keras_fit.KerasLearner),
    StrategyEntry("multiworker", "fit", keras_fit.KerasMultiWorker, keras_fit.KerasLearner),
)
