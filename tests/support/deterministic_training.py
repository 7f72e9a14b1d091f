"""`python -m hvdtrain.torch_lenet` with cuDNN's deterministic kernels, as bit-exact comparisons on a GPU need them."""

import os

import torch

from hvdtrain.cli.train import main

if __name__ == "__main__":
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if os.environ.get("GPU_REHEARSAL") == "1":
        from hvdtrain.frameworks.torch import step_graph
        from support.recorded_operations import RecordedOperations

        step_graph.CAPTURES["cpu"] = RecordedOperations
    main("torch", "deterministic_training.py")
