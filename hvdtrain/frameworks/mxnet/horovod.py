"""Horovod's allreduce of groups of gradients in MXNet; importing this file requires `horovod.mxnet`."""

from __future__ import annotations

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import gluon

from hvdtrain.system.phases import phases

Groups = list[list[str]]
"""Canonical names of the parameters whose gradients share a message, from `collectives.grouping`."""


def allreduce_groups(gradients: dict[str, mx.nd.NDArray], groups: Groups, op: int) -> None:
    """Combine gradients, by canonical name, over all ranks in place: one message for each group.

    The engine starts a message when the gradients of its group are computed. op: one of Horovod's.
    """
    if hvd.size() == 1:
        return
    for i, names in enumerate(groups):
        tensors = [gradients[name] for name in names]
        name = f"{names[0]}:{names[-1]}"
        phases.enqueued(name)
        hvd.grouped_allreduce_(tensors, op=op, name=name, priority=-i)


class GroupedTrainer(hvd.DistributedTrainer):
    """A DistributedTrainer with groups of given gradients; Horovod's `num_groups` makes groups of equal length."""

    def __init__(
        self,
        parameters: dict[str, gluon.Parameter],
        optimizer: mx.optimizer.Optimizer,
        compression: type[hvd.compression.Compressor],
        groups: Groups,
    ) -> None:
        super().__init__(parameters, optimizer, compression=compression)
        self._groups = groups
        self._names = {id(parameter): name for name, parameter in parameters.items()}

    def _allreduce_grads(self) -> None:
        gradients = {self._names[id(parameter)]: parameter.list_grad()[0] for parameter in self._params}
        compressed = {name: self._compression.compress(gradient) for name, gradient in gradients.items()}
        op = hvd.Sum if self._average_in_framework else hvd.Average
        allreduce_groups({name: tensor for name, (tensor, _) in compressed.items()}, self._groups, op)
        if self._compression is not hvd.Compression.none:
            for name, (tensor, context) in compressed.items():
                gradients[name][:] = self._compression.decompress(tensor, context)
