"""LeNet in MXNet's oldest style: a Symbol, bound by `mx.mod.Module`, trained by its `fit`.

Module's own loop takes the steps; ours hands it the rows of each, as an `NDArrayIter`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

import mxnet as mx
import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.mxnet import learner
from hvdtrain.frameworks.mxnet.learner import LazyLoss, MXNetLearner, contexts, optimizer
from hvdtrain.frameworks.mxnet.ndarray import pixels
from hvdtrain.interfaces import Batch
from hvdtrain.networks.description import Conv, Dense, Flatten, Network, Pool, Relu, Weights

LACKS: tuple[tuple[str, Any, str], ...] = (
    ("precision", "fp32", "Module's graph is plain fp32, choose --api gluon"),
    ("clip_norm", 0.0, "Module joins and updates in one call, choose --api gluon to clip between"),
    ("on_nan", "stop", "Module's fit skips nothing, choose --api gluon"),
)


class Single(learner.Single):
    """Module.fit in one process: gradients meet nobody."""

    lacks = LACKS
    kvstore: str | None = None
    """What `fit` is told."""

    def wrap(self, made: mx.optimizer.Optimizer, params: dict[str, mx.nd.NDArray]) -> mx.optimizer.Optimizer:
        """The optimizer that `fit` uses; `params` are rank 0's after that."""
        return made


class Horovod(learner.Horovod, Single):
    """Horovod's DistributedOptimizer in Module.fit: each update waits for its gradient's allreduce."""

    lacks = (
        *LACKS,
        ("compression", "none", "Horovod's DistributedOptimizer for MXNet has none, choose --api gluon"),
        ("op", "average", "Horovod's DistributedOptimizer for MXNet averages, choose --api gluon"),
    )

    def wrap(self, made: mx.optimizer.Optimizer, params: dict[str, mx.nd.NDArray]) -> mx.optimizer.Optimizer:
        self._hvd.broadcast_parameters(params, root_rank=0)
        return self._hvd.DistributedOptimizer(made)


class KVStore(learner.KVStore, Single):
    """Module.fit with MXNet's KVStore: over this process's devices, or over ranks (--kvstore dist_*)."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        super().__init__(config, runtime)
        self.kvstore = config.kvstore

    def wrap(self, made: mx.optimizer.Optimizer, params: dict[str, mx.nd.NDArray]) -> mx.optimizer.Optimizer:
        for name, value in self.group.broadcast({name: p.asnumpy() for name, p in params.items()}).items():
            params[name][:] = value
        made.rescale_grad /= self.sum_of
        return made


STRATEGIES = {"single": Single, "horovod": Horovod, "kvstore": KVStore}


def build(
    config: Config, network: Network, weights: Weights, strategy: Single, runtime: RuntimeOptions
) -> ModuleLearner:
    """The learner of `config`, at its first weights."""
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = "0"  # the update is this process's, so that its state can be saved
    return ModuleLearner(config, network, weights, strategy, runtime.device)


def symbol(network: Network) -> mx.sym.Symbol:
    """Logits of the variable `data`; parameters are named <layer>_weight and <layer>_bias."""
    x = mx.sym.var("data")
    for layer in network.layers:
        match layer:
            case Conv(name=name, kernel=k):
                x = mx.sym.Convolution(x, kernel=(k, k), num_filter=layer.outputs, name=name)
            case Dense(name=name):
                x = mx.sym.FullyConnected(x, num_hidden=layer.outputs, name=name)
            case Pool(size=k):
                kind = "avg" if layer.kind == "average" else "max"
                x = mx.sym.Pooling(x, kernel=(k, k), stride=(k, k), pool_type=kind)
            case Relu():
                x = mx.sym.relu(x)
            case Flatten():
                x = mx.sym.flatten(x)
    return x


def weighted_loss(logits: mx.sym.Symbol) -> mx.sym.Symbol:
    """sum(weights * cross entropy), whose gradient Module's backward takes."""
    picked = mx.sym.pick(mx.sym.log_softmax(logits), mx.sym.var("label"))
    return mx.sym.MakeLoss(mx.sym.sum(-picked * mx.sym.var("weights")))


class Feed(mx.io.DataIter):
    """An NDArrayIter for the rows of each step, one after the other."""

    def __init__(self, batches: Iterator[Batch], set_lr: Callable[[float], None], module: mx.mod.Module) -> None:
        super().__init__()
        self._batches, self._set_lr = batches, set_lr
        self.provide_data, self.provide_label = module.data_shapes, module.label_shapes

    def next(self) -> mx.io.DataBatch:
        images, labels, weights, lr = next(self._batches)
        # Module asks for the next batch when the update before it is queued: its learning rate may be set now.
        self._set_lr(lr)
        arrays = {"data": pixels(images), "weights": weights}
        return next(mx.io.NDArrayIter(arrays, {"label": labels.astype(np.float32)}, batch_size=len(images)))

    def reset(self) -> None:
        """Nothing: our loop decides what the next epoch's rows are."""


class NoMetric(mx.metric.EvalMetric):
    """Module wants a metric, and would wait for each step's output to feed it; the loop measures."""

    def __init__(self) -> None:
        super().__init__("none")

    def update(self, labels: Any, preds: Any) -> None:
        pass


class ModuleLearner(MXNetLearner):
    """A Symbol in a Module; what optimizers remember is kept as Gluon's learner does."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Single, device: str) -> None:
        self.group, self._strategy = strategy.group, strategy
        self._contexts = contexts(device, strategy.devices, self.group)
        self.device, self.devices = str(self._contexts[0]).partition("(")[0], len(self._contexts)
        self.skipped, self._config, self._lr = 0, config, config.lr
        self._logits_symbol = symbol(network)
        self._executors: dict[int, mx.executor.Executor] = {}
        self._network = network
        quiet = logging.getLogger("hvdtrain.module")  # fit warns that all is made already
        quiet.setLevel(logging.ERROR)
        self._module = mx.mod.Module(
            weighted_loss(self._logits_symbol), ("data", "weights"), ("label",), quiet, self._contexts
        )
        rows = max(config.global_batch(self.group.size) // self.group.size, self.devices)
        shapes = [("data", (rows, *network.input_shape)), ("weights", (rows,))]
        self._module.bind(shapes, [("label", (rows,))])
        self._optimizer = optimizer(config)
        params = {name: mx.nd.array(value) for name, value in weights.items()}
        wrapped = strategy.wrap(self._optimizer, params)
        self.load({name: value.asnumpy() for name, value in params.items()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rescale_grad is not 1 / batch: the rows' weights hold that
            self._module.init_optimizer(strategy.kvstore, wrapped)
        self._states = self._make_states()

    def _on_devices(self) -> dict[str, list[mx.nd.NDArray]]:
        """Each parameter's array on each device."""
        group = self._module._exec_group
        return {_canonical(name): arrays for name, arrays in zip(group.param_names, group.param_arrays, strict=True)}

    def _make_states(self) -> list[dict[str, tuple[mx.nd.NDArray, ...]]]:
        updater = self._module._updater
        made: list[dict[str, tuple[mx.nd.NDArray, ...]]] = [{} for _ in self._contexts]
        for i, (name, arrays) in enumerate(self._on_devices().items()):
            for device, array in enumerate(arrays):
                index = i * self.devices + device  # Module's number of a parameter on a device
                state = self._optimizer.create_state_multi_precision(index, array)
                updater.states[index], updater.states_synced[index] = state, True
                kept = () if state is None else state
                made[device][name] = kept if isinstance(kept, tuple) else (kept,)
        return made

    def _count(self, device: int, updates: int) -> None:
        indices = range(device, len(self._states[device]) * self.devices, self.devices)
        self._optimizer._index_update_count.update(dict.fromkeys(indices, updates))

    def fit(self, batches: Iterator[Batch], steps: int, after: Callable[[SupportsFloat], None]) -> None:
        """Train on `steps` batches by Module's loop (see `learner.FitLearner`)."""

        def done(_: Any) -> None:
            outputs = self._module.get_outputs(merge_multi_context=False)[0]
            after(LazyLoss([output.copy() for output in outputs]))  # the next step writes over them

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parameters and optimizer exist already
            self._module.fit(
                Feed(batches, self._set_lr, self._module),
                eval_metric=NoMetric(),
                batch_end_callback=done,
                kvstore=self._strategy.kvstore,
                num_epoch=1,
            )

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._executor(images).outputs[0].asnumpy()

    def _executor(self, images: np.ndarray) -> mx.executor.Executor:
        """The logits' graph bound for that many rows, after forward on the first device."""
        x = pixels(images)
        if len(x) not in self._executors:
            bound = self._logits_symbol.simple_bind(self._contexts[0], grad_req="null", data=x.shape)
            self._executors[len(x)] = bound
        executor = self._executors[len(x)]
        for name, arrays in self._on_devices().items():
            arrays[0].copyto(executor.arg_dict[_symbol_name(name)])
        executor.forward(is_train=False, data=mx.nd.array(x, ctx=self._contexts[0]))
        return executor

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = self._executor(images).outputs[0]
        picked = mx.nd.pick(mx.nd.log_softmax(logits), mx.nd.array(labels, ctx=self._contexts[0]))
        return -float(picked.sum().asscalar()), logits.argmax(axis=1).asnumpy().astype(np.int64)

    def weights(self) -> Weights:
        return {name: arrays[0].asnumpy() for name, arrays in self._on_devices().items()}

    def load(self, weights: Weights) -> None:
        if {name: value.shape for name, value in weights.items()} != dict(self._network.parameters()):
            raise ValueError("the parameters are not those of this network")
        params = {_symbol_name(name): mx.nd.array(value) for name, value in weights.items()}
        self._module.init_params(arg_params=params, aux_params={}, force_init=True)


def _canonical(name: str) -> str:
    return name.replace("_", ".")


def _symbol_name(name: str) -> str:
    return name.replace(".", "_")
