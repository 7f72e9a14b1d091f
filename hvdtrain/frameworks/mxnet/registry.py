"""MXNet's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.mxnet import strategies
from hvdtrain.frameworks.mxnet.learner import MXNetLearner
from hvdtrain.frameworks.registry import StrategyEntry
from hvdtrain.frameworks.styles import mxnet_module as module
from hvdtrain.frameworks.styles import mxnet_ndarray as ndarray

ENTRIES = (
    StrategyEntry("single", "gluon", strategies.MXNetSingleProcess, MXNetLearner),
    StrategyEntry("horovod", "gluon", strategies.MXNetHorovod, MXNetLearner),
    StrategyEntry("kvstore", "gluon", strategies.MXNetKVStore, MXNetLearner),
    StrategyEntry("ring", "gluon", strategies.MXNetRing, MXNetLearner),
    StrategyEntry("mpi", "gluon", strategies.MXNetMPI, MXNetLearner),
    StrategyEntry("single", "module", module.ModuleSingleProcess, module.ModuleLearner),
    StrategyEntry("horovod", "module", module.ModuleHorovod, module.ModuleLearner),
    StrategyEntry("kvstore", "module", module.ModuleKVStore, module.ModuleLearner),
    StrategyEntry("single", "ndarray", ndarray.NDArraySingleProcess, ndarray.NDArrayLearner),
    StrategyEntry("manual", "ndarray", ndarray.NDArrayManual, ndarray.NDArrayLearner),
    StrategyEntry("horovod", "ndarray", ndarray.NDArrayHorovod, ndarray.NDArrayLearner),
)
