"""PyTorch's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.registry import StrategyEntry
from hvdtrain.frameworks.torch import strategies
from hvdtrain.frameworks.torch.learner import TorchLearner
from hvdtrain.frameworks.torch.manual import TorchManual, TorchManualLearner

ENTRIES = (
    StrategyEntry("single", "loop", strategies.TorchSingleProcess, TorchLearner, takes_tasks=True),
    StrategyEntry("horovod", "loop", strategies.TorchHorovod, TorchLearner, takes_tasks=True),
    StrategyEntry("ddp", "loop", strategies.TorchDDP, TorchLearner, takes_tasks=True),
    StrategyEntry("dataparallel", "loop", strategies.TorchDataParallel, TorchLearner, takes_tasks=True),
    StrategyEntry("ring", "loop", strategies.TorchRing, TorchLearner, takes_tasks=True),
    StrategyEntry("mpi", "loop", strategies.TorchMPI, TorchLearner, takes_tasks=True),
    StrategyEntry("manual", "loop", TorchManual, TorchManualLearner, takes_tasks=True),
)
