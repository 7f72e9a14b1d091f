"""MXNet's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.mxnet import strategies
from hvdtrain.frameworks.mxnet.learner import MXNetLearner
from hvdtrain.frameworks.registry import MPI, RING, SINGLE, StrategyEntry
from hvdtrain.frameworks.styles import mxnet_module as module
from hvdtrain.frameworks.styles import mxnet_ndarray as ndarray

ENTRIES = (
    StrategyEntry("single", "gluon", strategies.MXNetStrategy, MXNetLearner, SINGLE),
    StrategyEntry("horovod", "gluon", strategies.MXNetHorovod, MXNetLearner),
    StrategyEntry("kvstore", "gluon", strategies.MXNetKVStore, MXNetLearner),
    StrategyEntry("ring", "gluon", strategies.MXNetAllreduce, MXNetLearner, RING),
    StrategyEntry("mpi", "gluon", strategies.MXNetAllreduce, MXNetLearner, MPI),
    StrategyEntry("single", "module", module.ModuleStrategy, module.ModuleLearner, SINGLE),
    StrategyEntry("horovod", "module", module.ModuleHorovod, module.ModuleLearner),
    StrategyEntry("kvstore", "module", module.ModuleKVStore, module.ModuleLearner),
    StrategyEntry("single", "ndarray", ndarray.NDArrayStrategy, ndarray.NDArrayLearner, SINGLE),
    StrategyEntry("manual", "ndarray", ndarray.NDArrayManual, ndarray.NDArrayLearner),
    StrategyEntry("horovod", "ndarray", ndarray.NDArrayHorovod, ndarray.NDArrayLearner),
)
