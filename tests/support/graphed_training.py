"""`python -m hvdtrain.torch_lenet` on the CPU with recorded operations in place of CUDA graphs, as a rank of a job."""

import sys

from support.recorded_operations import RecordedOperations

from hvdtrain.frameworks.torch import step_graph

if __name__ == "__main__":
    step_graph.CAPTURES["cpu"] = RecordedOperations
    from hvdtrain.torch_lenet import main

    sys.exit(main())
