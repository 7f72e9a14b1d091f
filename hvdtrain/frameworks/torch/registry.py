"""PyTorch's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.registry import StrategyEntry
from hvdtrain.frameworks.styles.torch_data_parallel import TorchDataParallel
from hvdtrain.frameworks.styles.torch_manual import TorchManual, TorchManualLearner
from hvdtrain.frameworks.torch import strategies
from hvdtrain.frameworks.torch.learner import TorchLearner

ENTRIES = (
    StrategyEntry("single", "loop", strategies.TorchSingleProcess, TorchLearner),
    StrategyEntry("horovod", "loop", strategies.TorchHorovod, TorchLearner),
    StrategyEntry("ddp", "loop", strategies.TorchDDP, TorchLearner),
    StrategyEntry("dataparallel", "loop", TorchDataParallel, TorchLearner),
    StrategyEntry("ring", "loop", strategies.TorchRing, TorchLearner),
    StrategyEntry("mpi", "loop", strategies.TorchMPI, TorchLearner),
    StrategyEntry("manual", "loop", TorchManual, TorchManualLearner),
)
