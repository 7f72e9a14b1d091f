"""Strategies of the training loop in TensorFlow: how the gradients of ranks or devices are combined."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.collectives import ring
from hvdtrain.collectives.groups import single_process
from hvdtrain.collectives.horovod import BLOCKING_PREFIX, HorovodGroup, gradient_groups
from hvdtrain.collectives.mean import shape_of
from hvdtrain.config.forms import NONE
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import count_devices
from hvdtrain.frameworks.preparation import TF_CONCURRENT_OPERATIONS
from hvdtrain.frameworks.tensorflow.batch_norm import SumOverRanks
from hvdtrain.frameworks.tensorflow.keras_versions import to_tensorflow
from hvdtrain.interfaces.strategy import Group, Strategy
from hvdtrain.system import rank_info
from hvdtrain.system.rank_info import TF_CONFIG

Step = Any
"""A `tf.function` step(*rows, lr): trains on one device, and returns its loss."""


def dense(gradients: list[Any]) -> list[tf.Tensor]:
    """Gradients as tensors: that of an embedding has only the rows that a batch uses."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


class TensorFlowStrategy(Strategy):
    """What the training loop calls; by default gradients are not combined."""

    takes_optimizer = sums_shards = True

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group, devices: int = 1) -> None:
        super().__init__(config, runtime, group, devices)
        self._graphs: dict[int, Callable[..., tf.Tensor]] = {}
        """The step's graph for each number of rows."""

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which the network is built."""
        return contextlib.nullcontext()

    def broadcast(self, variables: list[Any]) -> None:
        """Broadcast variables, of TensorFlow or of Keras, from rank 0, in place."""

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        """The gradients of the global batch; called inside of a step."""
        return dense(tape.gradient(loss, variables))

    def make_sum_over_ranks(self) -> SumOverRanks:
        """What batch normalization over all ranks calls inside of a step.

        It does not refer to this strategy, which holds the step's graphs: TensorFlow cannot free a cycle of those when
        the interpreter ends.
        """
        group = self.group

        def summed(values: np.ndarray) -> np.ndarray:
            return group.sum(values.copy())  # the array is a tensor's memory

        return lambda values: tf.ensure_shape(tf.numpy_function(summed, [values], tf.float64), values.shape)

    def run(self, step: Step, rows: tuple[np.ndarray, ...], lr: tf.Tensor) -> tf.Tensor:
        """Run a step on each device of this process, with its part of the rows; returns the sum of their losses.

        step: always the same `tf.function`.
        """
        arguments = (*map(tf.constant, rows), lr)
        count = len(rows[0])
        if count not in self._graphs:  # kept, because finding the graph for the arguments took a third of a ms
            self._graphs[count] = step.get_concrete_function(*arguments)
        return self._graphs[count](*arguments)


class TensorFlowHorovod(TensorFlowStrategy):
    """Horovod's DistributedGradientTape: gradient() allreduces the gradients in groups, and returns them."""

    requires = ("horovod.tensorflow",)
    conversions = (tf.constant, np.asarray)  # the array is the tensor's memory, and read-only

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.tensorflow as hvd

        self._hvd = hvd
        self._compression = getattr(hvd.Compression, config.compression if config.by_horovod else NONE)
        super().__init__(config, runtime, HorovodGroup(hvd, *self.conversions))

    def broadcast(self, variables: list[Any]) -> None:
        self._hvd.broadcast_variables(list(map(to_tensorflow, variables)), root_rank=0)

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        groups = self._groups(variables)
        distributed = self._hvd.DistributedGradientTape(
            tape, compression=self._compression, groups=groups, sparse_as_dense=True
        )
        return distributed.gradient(loss, variables)

    def _groups(self, variables: list[tf.Variable]) -> list[list[tf.Variable]]:
        """The variables whose gradients share a message; `variables` are in the order of the network."""
        by_number = {str(number): variable for number, variable in enumerate(variables)}
        sizes = {number: variable.shape.num_elements() for number, variable in by_number.items()}
        groups = gradient_groups(self.config, sizes, self.group.size)
        return [[by_number[number] for number in group] for group in groups]

    def make_sum_over_ranks(self) -> SumOverRanks:
        hvd = self._hvd
        return lambda values: hvd.allreduce(values, op=hvd.Sum, name=f"{BLOCKING_PREFIX}batch_norm")


class TensorFlowDistributed(TensorFlowStrategy):
    """A `tf.distribute.Strategy`: a replica on each device of each rank."""

    takes_optimizer = sums_shards = False

    def __init__(
        self, config: Config, runtime: RuntimeOptions, group: Group, devices: int, distribution: tf.distribute.Strategy
    ) -> None:
        super().__init__(config, runtime, group, devices)
        self.distribution = distribution

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return self.distribution.scope()

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        total = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, dense(tape.gradient(loss, variables))
        )
        return [gradient / self.group.size for gradient in total]

    def make_sum_over_ranks(self) -> SumOverRanks:
        return lambda values: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    def run(self, step: Step, rows: tuple[np.ndarray, ...], lr: tf.Tensor) -> tf.Tensor:
        parts = [np.split(array, self.devices) for array in rows]
        distribute = self.distribution.experimental_distribute_values_from_function
        first = self.group.rank * self.devices  # of the replicas of this process
        arrays = [
            distribute(lambda context, p=part: tf.constant(p[context.replica_id_in_sync_group - first]))
            for part in parts
        ]
        losses = self.distribution.experimental_local_results(self._run_on_replicas(step, *arrays, lr))
        return tf.add_n([tf.identity(loss) for loss in losses])

    @tf.function  # with a graph for each number of rows: one for any number rounds in another way
    def _run_on_replicas(self, step: Step, *arguments: Any) -> Any:
        return self.distribution.run(step, args=arguments)


class TensorFlowMirrored(TensorFlowDistributed):
    """tf.distribute.MirroredStrategy: a replica on each GPU of one process, or on logical CPU devices."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        group = single_process(config.strategy)
        gpus = tf.config.list_physical_devices("GPU") if runtime.device != "cpu" else []
        kind, devices = ("GPU" if gpus else "CPU"), count_devices(runtime.devices, len(gpus))
        if not gpus:
            _set_threads(devices)
            _divide_cpu(devices)
        distribution = _new_mirrored()([f"{kind}:{i}" for i in range(devices)])
        super().__init__(config, runtime, group, devices, distribution)


_numbers = itertools.count()
"""Of the MirroredStrategies of this process."""


def _new_mirrored() -> type[tf.distribute.MirroredStrategy]:
    """MirroredStrategy, with keys of its own for its collectives.

    By default all in a process use the same keys, for which TensorFlow remembers the shapes of the first network.
    """

    class Mirrored(tf.distribute.MirroredStrategy):
        _collective_key_base = 1000 * next(_numbers)

    return Mirrored


def _set_threads(devices: int) -> None:
    """Let each part of the CPU run as many operations at once as a process with one device."""
    threads = os.environ.get(TF_CONCURRENT_OPERATIONS, "")
    if threads.isdecimal():
        with contextlib.suppress(RuntimeError):  # TensorFlow has started already, for another learner
            tf.config.threading.set_inter_op_parallelism_threads(int(threads) * devices)


def _divide_cpu(devices: int) -> None:
    """Make logical devices of the CPU. Raises UserError in a process in which TensorFlow has started with others."""
    parts = [tf.config.LogicalDeviceConfiguration()] * devices
    try:
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    except RuntimeError as error:
        raise _has_started("mirrored", f"and not with {devices} devices") from error


def _has_started(strategy: str, why: str) -> UserError:
    """What a strategy says that is to set up TensorFlow, in a process in which another training has started it."""
    return UserError(
        f"--strategy {strategy}: TensorFlow has started in this process, {why}",
        "train in another process, for example by hvdtrain.launch",
        option="strategy",
    )


class TensorFlowMultiWorker(TensorFlowDistributed):
    """tf.distribute.MultiWorkerMirroredStrategy: a replica on each rank, TensorFlow's own collectives."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        # The ring connects the ranks, transports host values, and exchanges the addresses of TensorFlow's servers.
        group = ring.start(runtime.hang_timeout)
        group.cannot_time_gradients()
        if group.size > 1 and not os.environ.get(TF_CONFIG):
            workers = group.gather(group.free_address())
            task = {"type": "worker", "index": group.rank}
            os.environ[TF_CONFIG] = json.dumps({"cluster": {"worker": workers}, "task": task})
        if group.size > 1:  # workers never reach each other by a proxy, which gRPC would take from http_proxy
            os.environ["no_grpc_proxy"] = ",".join({host for host, _ in rank_info.cluster().addresses})  # noqa: SIM112
        super().__init__(config, runtime, group, 1, new_multiworker())


def new_multiworker() -> tf.distribute.MultiWorkerMirroredStrategy:
    """It connects the ranks. Raises UserError in a process in which TensorFlow has started."""
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise _has_started("multiworker", "which connects ranks only before that") from error


def to_matrix(array: tuple[int, ...]) -> tuple[int, int]:
    """A kernel's shape as that of a matrix: TensorFlow has a layer's outputs in its last dimension."""
    return shape_of(array) if len(array) < 2 else (math.prod(array[:-1]), array[-1])
