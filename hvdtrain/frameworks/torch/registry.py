"""PyTorch's strategies, and the learner of each."""

from __future__ import annotations

from hvdtrain.frameworks.registry import MPI, RING, SINGLE, StrategyEntry
from hvdtrain.frameworks.styles.torch_data_parallel import TorchDataParallel
from hvdtrain.frameworks.styles.torch_manual import TorchManual, TorchManualLearner
from hvdtrain.frameworks.torch import strategies
from hvdtrain.frameworks.torch.learner import TorchLearner

ENTRIES = (
    StrategyEntry("single", "loop", strategies.TorchStrategy, TorchLearner, SINGLE),
    StrategyEntry("horovod", "loop", strategies.TorchHorovod, TorchLearner),
    StrategyEntry("ddp", "loop", strategies.TorchDDP, TorchLearner),
    StrategyEntry("dataparallel", "loop", TorchDataParallel, TorchLearner),
    StrategyEntry("ring", "loop", strategies.TorchAllreduce, TorchLearner, RING),
    StrategyEntry("mpi", "loop", strategies.TorchAllreduce, TorchLearner, MPI),
    StrategyEntry("manual", "loop", TorchManual, TorchManualLearner),
)
