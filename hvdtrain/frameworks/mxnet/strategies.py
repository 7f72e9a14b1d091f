"""Strategies of Gluon's training loop in MXNet: how the gradients of ranks or devices are combined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

import mxnet as mx
import numpy as np
from mxnet import gluon

from hvdtrain.collectives import ring
from hvdtrain.collectives.arrays import broadcast_arrays
from hvdtrain.collectives.grouping import gradient_groups
from hvdtrain.collectives.groups import single_process
from hvdtrain.collectives.horovod import HorovodGroup
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.devices import count_devices
from hvdtrain.frameworks.mxnet import servers
from hvdtrain.frameworks.mxnet.arrays import copy_into
from hvdtrain.interfaces import AllreduceGroup, Group, Strategy

Parameters = dict[str, gluon.Parameter]
"""Gluon's parameters by canonical name."""


class MXNetStrategy(Strategy):
    """What Gluon's training loop calls; by default gradients are not combined."""

    waits = False
    """Whether combining gradients is more than taking those of one device."""
    gradient_divisor: float = 1
    """What the trainer's combined gradient is divided by to get that of the global batch."""

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        """What combines gradients and updates parameters; also broadcasts parameters from rank 0."""
        return gluon.Trainer(parameters, optimizer, kvstore=None)


def horovod_group(hvd: ModuleType) -> HorovodGroup:
    """The processes of `horovod.mxnet`."""
    return HorovodGroup(hvd, lambda values: mx.nd.array(values, dtype=values.dtype), mx.nd.NDArray.asnumpy)


class MXNetHorovod(MXNetStrategy):
    """Horovod's DistributedTrainer: allreduces groups of gradients as soon as the engine has them."""

    requires = ("horovod.mxnet",)
    waits = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.mxnet as hvd

        super().__init__(config, runtime, horovod_group(hvd))
        self._hvd = hvd
        # The trainer averages over ranks; a sum is that average times the number of ranks.
        self.gradient_divisor = 1 / self.group.size if config.op == "sum" else 1

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        self._hvd.broadcast_parameters(parameters, root_rank=0)
        compression = getattr(self._hvd.Compression, self.config.compression)
        from hvdtrain.frameworks.mxnet.horovod import GroupedTrainer

        return GroupedTrainer(parameters, optimizer, compression, self.groups(parameters))

    def groups(self, parameters: Mapping[str, gluon.Parameter | mx.nd.NDArray]) -> list[list[str]]:
        """See `gradient_groups`; parameters: by canonical name, in the order of the network."""
        sizes = {name: math.prod(parameter.shape) for name, parameter in parameters.items()}
        return gradient_groups(self.config, sizes, self.group.size)


class MXNetKVStore(MXNetStrategy):
    """MXNet's KVStore: over devices of one process (--kvstore device, local) or over ranks (dist_*)."""

    many_devices = True
    waits = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        group: Group
        gpus = mx.context.num_gpus() if runtime.device != "cpu" else 0
        if config.kvstore.startswith("dist"):
            group = ring_group = ring.start(runtime.hang_timeout)
            servers.start(ring_group)
            ring_group.combines_gradients_unseen()
            devices, self.gradient_divisor = count_devices(runtime.devices or 1, gpus), group.size
        else:
            group = single_process(config.strategy)
            devices = count_devices(runtime.devices, gpus)
        super().__init__(config, runtime, group, devices)

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        trainer = gluon.Trainer(parameters, optimizer, kvstore=self.config.kvstore, update_on_kvstore=False)
        # By default the trainer pulls rank 0's weights from the servers in its first step, but the engine may send the
        # first gradients before that, so that a slow rank pulls gradients as its weights. So all ranks pull now.
        trainer._init_kvstore()
        trainer._init_params()
        mx.nd.waitall()
        self.group.sum(np.zeros(1))
        return trainer


class AllreduceTrainer(gluon.Trainer):
    """Sums all gradients as one array, by `group.allreduce`, and divides by the number of ranks."""

    def __init__(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer, group: AllreduceGroup) -> None:
        super().__init__(parameters, optimizer, kvstore=None)
        self._group = group
        sizes = [math.prod(parameter.shape) for parameter in self._params]
        self._flat = np.empty(sum(sizes), np.float32)
        parts = np.split(self._flat, np.cumsum(sizes)[:-1])
        self._parts = [part.reshape(own.shape) for part, own in zip(parts, self._params, strict=True)]

    def _allreduce_grads(self) -> None:
        gradients = [parameter.grad() for parameter in self._params]
        for gradient, part in zip(gradients, self._parts, strict=True):
            part[...] = gradient.asnumpy()
        self._group.allreduce(self._flat)
        self._flat /= self._group.size
        for gradient, part in zip(gradients, self._parts, strict=True):
            copy_into(gradient, part)


class MXNetAllreduce(MXNetStrategy):
    """All gradients in one array, summed by the group's `allreduce`."""

    group: AllreduceGroup
    waits = True

    def make_trainer(self, parameters: Parameters, optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        own = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
        for name, value in broadcast_arrays(self.group, own).items():
            parameters[name].set_data(mx.nd.array(value))
        return AllreduceTrainer(parameters, optimizer, self.group)
