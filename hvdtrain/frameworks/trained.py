"""A trained model as its framework has it, for `hvdtrain.load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import require, set_environment
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.networks.description import Weights
from hvdtrain.system.text import printable
from hvdtrain.tasks.progress import Progress, place
from hvdtrain.tasks.target import Target
from hvdtrain.tasks.user import UserTask


def trained_model(path: Path, saved: Checkpoint, make_target: Callable[[], Target]) -> Any:
    """The model of a checkpoint with the weights that evaluations measured, on the CPU.

    path: the checkpoint's. make_target: called once the framework is ready, as a task's file imports it. Raises
    UserError if the framework is missing, or the weights are not the model's.
    """
    framework = recorded_framework(saved.framework, path)
    set_environment()
    try:
        target = make_target()
        if isinstance(target, UserTask):
            target.expect_rows(saved.position.global_batch)
        place.now = Progress(saved.position.step, saved.position.epoch)
        return _MODELS[framework](target, saved.evaluated, saved.position.seed)
    except ValueError as error:
        reason = f"{path}: its weights are not those of {saved.model} ({printable(str(error)):.200})"
        raise UserError(reason, "use the code that has trained it") from None


def recorded_framework(framework: str, path: Path | str) -> Framework:
    """The framework that wrote a checkpoint. Raises UserError if it is not installed, or unknown."""
    if framework not in get_args(Framework):
        raise UserError(f"{path}: written by the unknown framework {framework!r:.80}", "give another run")
    known = cast("Framework", framework)
    require([known], known)
    return known


def _torch(target: Target, weights: Weights, seed: int) -> Any:
    import torch

    from hvdtrain.frameworks.torch.export import WholeImages
    from hvdtrain.frameworks.torch.network import load_module
    from hvdtrain.frameworks.torch.objective import OBJECTIVES, set_training
    from hvdtrain.tasks.target import NetworkTarget

    if isinstance(target, NetworkTarget):
        return WholeImages(target.network, weights).eval()
    model = OBJECTIVES[target.kind](target, Config(seed=seed), torch.contiguous_format).model
    load_module(model, weights)
    set_training(model, False)
    return model


def _tensorflow(target: Target, weights: Weights, seed: int) -> Any:
    from hvdtrain.frameworks.tensorflow.objective import OBJECTIVES
    from hvdtrain.frameworks.tensorflow.strategies import TensorFlowStrategy

    config = Config(framework="tensorflow", strategy="single", seed=seed)
    strategy = TensorFlowStrategy(config, RuntimeOptions(device="cpu"), SingleProcess())
    objective = OBJECTIVES[target.kind](target, strategy)
    objective.load(weights)
    return objective.model


def _mxnet(target: Target, weights: Weights, seed: int) -> Any:
    import mxnet as mx

    from hvdtrain.frameworks.mxnet.objective import OBJECTIVES
    from hvdtrain.frameworks.mxnet.strategies import MXNetStrategy

    config = Config(framework="mxnet", strategy="single", seed=seed)
    strategy = MXNetStrategy(config, RuntimeOptions(device="cpu"), SingleProcess())
    return OBJECTIVES[target.kind](target, weights, strategy, [mx.cpu()]).trained_block()


_MODELS: dict[str, Callable[..., Any]] = {"torch": _torch, "tensorflow": _tensorflow, "mxnet": _mxnet}
