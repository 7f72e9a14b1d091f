"""Strategies of Gluon's training loop in MXNet: how the gradients of ranks or devices are combined."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from hvdtrain.collectives import ring
from hvdtrain.collectives.groups import single_process
from hvdtrain.collectives.horovod import HorovodGroup, gradient_groups
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.batches import count_devices
from hvdtrain.frameworks.mxnet.network import Parameters
from hvdtrain.interfaces.strategy import Group, Strategy
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
Groups = list[list[str]]
"""Canonical names of the parameters whose gradients share a message, from `gradient_groups`."""


class MXNetStrategy(Strategy):
    """What Gluon's training loop calls; by default gradients are not combined."""

    takes_optimizer = sums_shards = True
    waits = False
    """Whether combining gradients is more than taking those of one device."""
    gradient_divisor: float = 1
    """What the trainer's combined gradient is divided by to get that of the global batch."""

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        """What combines gradients and updates parameters; also broadcasts parameters from rank 0."""
        return gluon.Trainer(parameters, optimizer, kvstore=None)


def to_tensor(values: np.ndarray) -> mx.nd.NDArray:
    """An array of MXNet of the same type."""
    return mx.nd.array(values, dtype=values.dtype)


def allreduce_groups(hvd: ModuleType, gradients: dict[str, mx.nd.NDArray], groups: Groups, op: int) -> None:
    """Combine gradients, by canonical name, over all ranks in place: one message for each group.

    The engine starts a message when the gradients of its group are computed. op: one of Horovod's.
    """
    if hvd.size() == 1:
        return
    for i, names in enumerate(groups):
        tensors = [gradients[name] for name in names]
        name = f"{names[0]}:{names[-1]}"
        hvd.grouped_allreduce_(tensors, op=op, name=name, priority=-i)


def _allreduce_compressed(hvd: ModuleType, parameters: Parameters, compression: Any, groups: Groups, op: int) -> None:
    """Combine the gradients of a trainer's parameters over all ranks."""
    gradients = {name: parameter.list_grad()[0] for name, parameter in parameters.items()}
    compressed = {name: compression.compress(gradient) for name, gradient in gradients.items()}
    allreduce_groups(hvd, {name: tensor for name, (tensor, _) in compressed.items()}, groups, op)
    if compression is not hvd.Compression.none:
        for name, (tensor, context) in compressed.items():
            gradients[name][:] = compression.decompress(tensor, context)


class MXNetHorovod(MXNetStrategy):
    """Horovod's DistributedTrainer: allreduces groups of gradients as soon as the engine has them."""

    requires = ("horovod.mxnet",)
    conversions = (to_tensor, mx.nd.NDArray.asnumpy)
    waits = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.mxnet as hvd

        super().__init__(config, runtime, HorovodGroup(hvd, *self.conversions))
        self._hvd = hvd

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        hvd = self._hvd
        hvd.broadcast_parameters(parameters, root_rank=0)
        compression = getattr(hvd.Compression, self.config.compression)
        trainer = hvd.DistributedTrainer(parameters, optimizer, compression=compression)
        op = hvd.Sum if trainer._average_in_framework else hvd.Average
        combine = functools.partial(_allreduce_compressed, hvd, parameters, compression, self.groups(parameters), op)
        trainer._allreduce_grads = combine  # Horovod's `num_groups` would make groups of equal length
        return trainer

    def groups(self, parameters: Mapping[str, gluon.Parameter | mx.nd.NDArray]) -> Groups:
        """See `gradient_groups`; parameters: by canonical name, in the order of the network."""
        sizes = {name: math.prod(parameter.shape) for name, parameter in parameters.items()}
        return gradient_groups(self.config, sizes, self.group.size)


class MXNetKVStore(MXNetStrategy):
    """MXNet's KVStore."""

    many_devices = True
    sums_shards = False
    waits = True
    kvstore: str | None

    def __init__(self, config: Config, runtime: RuntimeOptions, store: str) -> None:
        """store: its type, as MXNet calls it."""
        group: Group
        self.kvstore = store
        gpus = mx.context.num_gpus() if runtime.device != "cpu" else 0
        if store.startswith("dist"):
            group = ring_group = ring.start(runtime.hang_timeout)
            _start_servers(ring_group)
            ring_group.cannot_time_gradients()
            devices, self.gradient_divisor = count_devices(runtime.devices or 1, gpus), group.size
        else:
            group = single_process(config.strategy)
            devices = count_devices(runtime.devices, gpus)
        super().__init__(config, runtime, group, devices)

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        trainer = gluon.Trainer(parameters, optimizer, kvstore=self.kvstore, update_on_kvstore=False)
        # By default the trainer pulls rank 0's weights from the servers in its first step, but the engine may send the
        # first gradients before that, so that a slow rank pulls gradients as its weights. So all ranks pull now.
        trainer._init_kvstore()
        trainer._init_params()
        mx.nd.waitall()
        self.group.sum(np.zeros(1))
        return trainer


def _start_servers(group: ring.RingGroup) -> None:
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
