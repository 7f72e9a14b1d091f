"""Measures waits that it makes itself: two ranks of horovod.torch; rank 1 comes later.

usage: waiting.py STEPS; each rank prints how long it has waited in a step, by Horovod and by its own clock, in seconds
"""

import sys
import time

import horovod.torch as hvd
import torch

from hvdtrain.collectives.horovod import BLOCKING_PREFIX, HorovodGroup

LATE_S, COMPUTE_S = 0.1, 0.2


def main() -> None:
    """In each step: a blocking sum, a gradient that is combined while the other one is computed, and that one."""
    group = HorovodGroup(hvd, torch.from_numpy, lambda tensor: tensor.numpy())
    late_s = LATE_S if group.rank == 1 else 0.0
    steps = int(sys.argv[1])
    own_s = before = 0.0
    for step in range(steps + 1):  # the first one is left out
        if step == 1:
            before, own_s = group.communicate_s, 0.0
        time.sleep(late_s)
        began = time.perf_counter()
        hvd.allreduce(torch.ones(1), name=f"{BLOCKING_PREFIX}sum")
        own_s += time.perf_counter() - began
        first = hvd.allreduce_async(torch.ones(8), name="first")
        time.sleep(COMPUTE_S + late_s)
        began = time.perf_counter()
        last = hvd.allreduce_async(torch.ones(8), name="last")
        hvd.synchronize(last)
        own_s += time.perf_counter() - began
        hvd.synchronize(first)
    measured_s = group.communicate_s - before
    print(f"rank {group.rank} waited {measured_s / steps:.4f} and {own_s / steps:.4f}", flush=True)
    group.close()


main()
