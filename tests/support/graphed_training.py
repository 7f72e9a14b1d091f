"""`python -m hvdtrain.torch_lenet` on the CPU, with recorded operations in place of CUDA graphs.

With `--then` between their options, several trainings in one process, as of the program `several`.
"""

import sys

from hvdtrain.cli.train import main
from hvdtrain.frameworks.torch import step_graph
from support.programs import several
from support.recorded_operations import RecordedOperations

if __name__ == "__main__":
    step_graph.CAPTURES["cpu"] = RecordedOperations
    if "--then" in sys.argv:
        several("torch", sys.argv[1:])
    else:
        main("torch", "graphed_training.py")
