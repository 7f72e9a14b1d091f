"""`python -m hvdtrain.torch_lenet` on the CPU, with recorded operations in place of CUDA graphs."""

from hvdtrain.frameworks.torch import step_graph
from support.recorded_operations import RecordedOperations

if __name__ == "__main__":
    step_graph.CAPTURES["cpu"] = RecordedOperations
    from hvdtrain.cli.train import main

    main("torch", "graphed_training.py")
