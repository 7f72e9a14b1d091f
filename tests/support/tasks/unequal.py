"""A task in PyTorch whose shards take the ranks that the variable SLOW lists three times as long as others."""

import os
import time

from of_torch import Classifier
from task_rows import KINDS, NUMBERS
from torch import nn

from hvdtrain.system import rank_info

SHARD_S = float(os.environ.get("SHARD_S", 0))
FACTOR = 3 if str(rank_info.detect().rank) in os.environ.get("SLOW", "").split(",") else 1


class Unequal(Classifier):
    def data(self):
        return (NUMBERS.repeat(10, 0), KINDS.repeat(10)), (NUMBERS[:8], KINDS[:8])

    def losses(self, outputs, labels):
        time.sleep(FACTOR * SHARD_S)
        return nn.functional.cross_entropy(outputs, labels, reduction="none")
