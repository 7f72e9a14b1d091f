"""The training loop's learner in PyTorch."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from hvdtrain.frameworks.batches import network_rows
from hvdtrain.frameworks.devices import choose_device, split_rows
from hvdtrain.frameworks.loss_scale import scale_of_rows
from hvdtrain.frameworks.torch.batch_norm import BatchNormalization
from hvdtrain.frameworks.torch.compilation import choose_cache, compile_forward
from hvdtrain.frameworks.torch.network import TorchNetwork, scale_pixels
from hvdtrain.frameworks.torch.optimizer import make_optimizer, read_state, write_state
from hvdtrain.frameworks.torch.strategies import TorchStrategy
from hvdtrain.interfaces import Batch, OptimizerState
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.dropout import draw_masks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchLearner:
    """A PyTorch network with activations in memory format channels_last, trained with one strategy."""

    def __init__(self, network: ShapedNetwork, weights: Weights, strategy: TorchStrategy) -> None:
        config = strategy.config
        self.group = strategy.group
        self.device = choose_device(
            strategy.runtime.device, torch.cuda.is_available(), torch.cuda.device_count(), self.group
        )
        self.devices, self.state_by_rank = strategy.devices, strategy.state_by_rank
        self.skipped = 0
        self._config, self._network, self._strategy = config, network, strategy
        self._device_type = self.device.split(":")[0]
        if config.compile:
            choose_cache()
        self._model = TorchNetwork(network)
        self.load(weights)
        self._model.to(self.device)
        self._parameters = dict(self._model.named_parameters())
        self._scaler = torch.amp.GradScaler(self._device_type, enabled=config.precision == "fp16")
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(
                {**self._scaler.state_dict(), "scale": self._scaler.get_scale() / scale_of_rows(self.group.size)}
            )
        optimizer = make_optimizer(config, list(self._parameters.values()))
        self._optimizer = strategy.wrap_optimizer(optimizer, self._model)
        self._training_model = strategy.wrap_model(self._model, self.device)
        self._synchronized = [one for one in self._model.modules() if isinstance(one, BatchNormalization)]
        if config.batch_norm == "local":
            self._synchronized = []
        for one in self._synchronized:
            one.group = self.group

    def compile(self, rows: int) -> float:
        """Compile the network for steps of `rows` images; see `CompilingLearner`."""
        began, rows = time.perf_counter(), -(-rows // self._config.accumulate)
        images = np.zeros((rows, *self._network.input_shape), np.uint8)
        masks = draw_masks(self._network, 0, 0, np.arange(rows))
        statistics = {name: value.clone() for name, value in self._model.named_buffers()}

        def warm_up() -> None:
            torch.autograd.grad(self._forward(self._model, images, *masks).sum(), list(self._parameters.values()))

        try:
            compile_forward(self._model, rows, warm_up)
        finally:
            for name, value in self._model.named_buffers():
                value.copy_(statistics[name])
        return time.perf_counter() - began

    def _forward(self, model: nn.Module, images: np.ndarray, *masks: np.ndarray) -> torch.Tensor:
        # Parameters keep their layout, because Horovod requires contiguous gradients.
        height, width = self._network.used_pixels
        used = torch.from_numpy(images)[:, :, :height, :width]
        pixels = scale_pixels(used.to(self.device, non_blocking=True), torch.channels_last)
        dtype = DTYPES[self._config.precision]
        with torch.autocast(self._device_type, dtype, enabled=dtype is not torch.float32):
            return model(pixels, *map(self._to_device, masks)).float()

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def train_step(self, batch: Batch) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = batch.lr
        loss = self.compute_gradients(batch)
        self._strategy.reduce(self._optimizer)
        self._scaler.unscale_(self._optimizer)
        finite = self._clip_and_check()
        if finite:
            self._strategy.update(self._optimizer, self._scaler)
        self.skipped += self._rescale() or not finite
        return loss

    def compute_gradients(self, batch: Batch) -> torch.Tensor:
        self._optimizer.zero_grad()
        rows = network_rows(self._network, self._config.seed, batch)
        return sum(self._backward(*part) for part in split_rows(self._config.accumulate, *rows))

    def _backward(self, weights: np.ndarray, labels: np.ndarray, *inputs: np.ndarray) -> torch.Tensor:
        row_weights = self._to_device(weights)
        for one in self._synchronized:
            one.real_rows = (row_weights > 0).float()
        outputs = self._forward(self._training_model, *inputs)
        loss = nn.functional.cross_entropy(outputs, self._to_device(labels), reduction="none") @ row_weights
        self._scaler.scale(loss).backward()
        return loss.detach()

    def _clip_and_check(self) -> bool:
        """Clip the combined gradients; False if they are not finite and --on-nan skip is to skip the step.

        Combined gradients are identical on all ranks, so either all ranks skip the step or none does.
        """
        skip = self._config.on_nan == "skip"
        if not (skip or self._config.clip_norm):
            return True
        limit = self._config.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), limit)
        return not skip or bool(norm.isfinite())

    def _rescale(self) -> bool:
        """Lower fp16's loss scale if gradients overflowed, else raise it; whether the scaler skipped the update."""
        if not self._scaler.is_enabled():
            return False
        before = self._scaler.get_scale()
        self._scaler.update()
        return self._scaler.get_scale() < before

    @torch.no_grad()
    def _logits(self, images: np.ndarray) -> torch.Tensor:
        self._model.eval()
        try:
            return self._forward(self._model, images)
        finally:
            self._model.train()

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._logits(images).cpu().numpy()

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = self._logits(images)
        loss = nn.functional.cross_entropy(logits, self._to_device(labels), reduction="sum")
        return float(loss), logits.argmax(1).cpu().numpy()

    def weights(self) -> Weights:
        return {name: value.detach().cpu().numpy().copy() for name, value in self._model.state_dict().items()}

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        self._model.load_state_dict({n: torch.from_numpy(np.ascontiguousarray(value)) for n, value in weights.items()})

    def optimizer_state(self) -> OptimizerState:
        return read_state(self._optimizer, self._parameters, extra={"loss_scale": self._scaler.state_dict()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        write_state(self._optimizer, self._parameters, state)
        if state.extra.get("loss_scale"):
            self._scaler.load_state_dict(state.extra["loss_scale"])
