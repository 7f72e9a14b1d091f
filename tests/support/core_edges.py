"""Uses of Horovod's core that it once could not serve; prints what it found out on each rank.

usage: python core_edges.py addresses INTERFACE | join

addresses: the local addresses of the connections to the other ranks over this interface. join: rank 1 joins while
rank 0 goes on; prints how many operations were right.
"""

from __future__ import annotations

import os
import sys

import horovod.torch as hvd
import psutil
import torch


def addresses(interface: str) -> None:
    os.environ["HOROVOD_GLOO_IFACE"] = interface
    hvd.init()
    hvd.allreduce(torch.ones(1 << 20), name="large")
    rendezvous = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    connections = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
    print("addresses", *{each.laddr.ip for each in connections if each.raddr.port != rendezvous}, flush=True)


def join() -> None:
    hvd.init()
    done = 0
    for step in range(30 if hvd.rank() else 60):
        total = hvd.allreduce(torch.ones(1000), name="sum", op=hvd.Sum)
        done += bool((total == (2 if step < 30 else 1)).all())
    hvd.join()
    print(f"{done} operations were right", flush=True)


if __name__ == "__main__":
    {"addresses": addresses, "join": join}[sys.argv[1]](*sys.argv[2:])
