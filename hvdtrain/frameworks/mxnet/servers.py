"""The processes that MXNet's distributed KVStore needs in addition to its workers: a scheduler and servers."""

from __future__ import annotations

import os
import subprocess
import sys

from hvdtrain.collectives.ring import RingGroup
from hvdtrain.system.processes import end_with_parent

SERVER = """
import pickle

def reject(*_):
    raise RuntimeError("a command holds a pickle, which workers of hvdtrain never send")

pickle.loads = reject
import mxnet
"""
"""The program of a scheduler or server. In these roles, `import mxnet` serves until all workers have finished; without
the first lines it would unpickle, and so execute, what anyone sends to its port as an optimizer."""


def start(group: RingGroup) -> None:
    """Start one scheduler on rank 0 and one server per host, and make this process a worker.

    They end with the rank that started them, for whatever reason it ends. Call it on every rank, before the store is
    created.
    """
    host, port = group.broadcast(group.free_address()).rsplit(":", 1)
    common = {
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_WORKER": str(group.size),
        "DMLC_NUM_SERVER": str(sum(group.gather(group.local_rank == 0))),
        "DMLC_NODE_HOST": group.free_address().rsplit(":", 1)[0],
    }
    roles = ["scheduler"] * (group.rank == 0) + ["server"] * (group.local_rank == 0)
    for role in roles:
        environment = {**os.environ, **common, "DMLC_ROLE": role}
        subprocess.Popen([sys.executable, "-c", SERVER], env=environment, preexec_fn=end_with_parent)
    os.environ.update(common, DMLC_ROLE="worker")
