"""Uses of Horovod's core that it once could not serve, in one job; prints what it found out on each rank.

usage: python core_edges.py PART ...

allreduces=COUNT: as allreduces.py. addresses=INTERFACE: the local addresses of the connections to the other ranks over
it. waiting=STEPS: how long a rank has waited in a step, by Horovod and its own clock, in seconds; rank 1 comes later.
join: rank 1 joins while the others go on; how many operations were right.
"""

from __future__ import annotations

import os
import sys
import time
from unittest import mock

import allreduces
import horovod.torch as hvd
import psutil
import torch

from hvdtrain.collectives.horovod import BLOCKING_PREFIX, HorovodGroup

LATE_S, COMPUTE_S = 0.1, 0.2


def addresses(interface: str) -> None:
    with mock.patch.dict(os.environ, HOROVOD_GLOO_IFACE=interface):
        hvd.init()
    hvd.allreduce(torch.ones(1 << 20), name="large")
    rendezvous = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    connections = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
    print("addresses", *{each.laddr.ip for each in connections if each.raddr.port != rendezvous}, flush=True)
    hvd.shutdown()


def waiting(steps: str) -> None:
    """In each step: a blocking sum, a gradient that is combined while the other one is computed, and that one."""
    group = HorovodGroup(hvd, torch.from_numpy, lambda tensor: tensor.numpy())
    late_s = LATE_S if group.rank == 1 else 0.0
    own_s = before = 0.0
    for step in range(int(steps) + 1):  # the first one is left out
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
    print(f"rank {group.rank} waited {measured_s / int(steps):.4f} and {own_s / int(steps):.4f}", flush=True)
    group.close()


def join() -> None:
    """With the autotuner."""
    os.environ["HOROVOD_AUTOTUNE"] = "1"
    hvd.init()
    del os.environ["HOROVOD_AUTOTUNE"]
    done = 0
    for step in range(30 if hvd.rank() == 1 else 60):
        total = hvd.allreduce(torch.ones(1000), name="sum", op=hvd.Sum)
        done += bool((total == hvd.size() - (step >= 30)).all())
    hvd.join()
    print(f"after a rank has joined, {done} operations were right", flush=True)
    hvd.shutdown()


PARTS = {"allreduces": allreduces.main, "addresses": addresses, "waiting": waiting, "join": join}

if __name__ == "__main__":
    for part in sys.argv[1:]:
        name, _, value = part.partition("=")
        PARTS[name](*([value] if value else []))
