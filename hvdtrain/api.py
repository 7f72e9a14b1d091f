"""Training from Python: of a task in this process (`fit`) or in fresh ones (`launch`), or by a loop (`start`).

`load` returns what was trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.config.option import arguments
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.datasets.division import Division
from hvdtrain.doctor import examine_host
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.frameworks.trained import trained_model
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.runs import checkpoints
from hvdtrain.runs.record import RunFolder
from hvdtrain.system import arithmetic
from hvdtrain.system.files import unique_name
from hvdtrain.system.processes import end_with_parent
from hvdtrain.system.python_files import is_script
from hvdtrain.tasks.registry import load_trained
from hvdtrain.tasks.target import NetworkTarget, Target
from hvdtrain.tasks.user import make_task
from hvdtrain.training.process import ending_process, notifying, prepare_host, read_options

if TYPE_CHECKING:
    from hvdtrain.training.user_loop import UserLoop


def fit(task: Any, config: Config | None = None, options: RuntimeOptions | None = None) -> RunFolder:
    """Train a task in this process; under a launcher, on each of its ranks.

    task: a class or an object with the methods of a task (docs/own.md). config: by default those of `Config` with
    --strategy single. Raises UserError if task or options do not allow it, TrainingError if training fails.
    """
    from hvdtrain.training.train import train

    kind = task if inspect.isclass(task) else type(task)
    config = config or Config(strategy="single")
    made = make_task(_name(kind), task, (), config.on_bad_row == "skip", Division.by(config))
    config = dataclasses.replace(config, model=made.name)
    options = options or RuntimeOptions()
    with notifying(options.on_end):
        return RunFolder(train(config, options, examine_host, made))


def _name(kind: type) -> str:
    """FILE.py:CLASS, or the name of a class that is in no file."""
    try:
        file = inspect.getfile(kind)
    except (OSError, TypeError):
        return kind.__qualname__
    return f"{file}:{kind.__qualname__}" if file.endswith(".py") else kind.__qualname__


@contextlib.contextmanager
def start(
    config: Config | None = None,
    options: RuntimeOptions | None = None,
    arguments: Sequence[str] | None = None,
    framework: Framework | None = None,
) -> Iterator[UserLoop]:
    """Train by a loop of the script's own, on each rank that a launcher started (docs/own-loop.md).

    Without `config` and `options`, the options are those of the command line, or `arguments`; an error then ends the
    process with one line, as `hvdtrain train` does. Otherwise raises UserError if they do not allow it, TrainingError
    if training fails, Stopped if the job was asked to stop. framework: the script's; by default that of the options.
    """
    from hvdtrain.training.user_loop import UserLoop

    if arguments is not None and (config or options):
        raise UserError("start() got arguments and Config or RuntimeOptions", "give arguments, or the others")
    script = os.path.basename(sys.argv[0]) or "script"
    by_command_line = config is None and options is None
    with ending_process() if by_command_line else notifying(options.on_end if options else "") as ending:
        if ending:
            config, options = read_options(framework, script, list(sys.argv[1:] if arguments is None else arguments))
            ending.on_end = options.on_end
        config, options = config or Config(strategy="single"), options or RuntimeOptions()
        if framework:
            config = dataclasses.replace(config, framework=framework)
        prepare_host(config, options)
        with UserLoop(script, config, options, examine_host) as loop:
            yield loop


def launch(task: str, ranks: int = 1, config: Config | None = None, options: RuntimeOptions | None = None) -> RunFolder:
    """Train FILE.py:CLASS in fresh processes on this host; their output goes to this one's.

    config: by default that of `Config`, with --strategy horovod. Raises TrainingError if the job fails.
    """
    options = options or RuntimeOptions()
    name = options.name or unique_name(f"{task.rpartition(':')[2]}-np{ranks}")
    options = dataclasses.replace(options, name=name)
    given = {**_changed(config or Config(), Config()), **_changed(options, RuntimeOptions())}
    program = [sys.executable, "-m", "hvdtrain"]
    command = [*program, "launch", "local", "-n", str(ranks), "--", *program, "train", task, *arguments(given)]
    environment = arithmetic.given_environment()
    ended = subprocess.run(command, env=environment, check=False, preexec_fn=lambda: end_with_parent(signal.SIGTERM))
    if ended.returncode:
        raise TrainingError(f"the job ended with status {ended.returncode}", f"see the logs in {options.runs / name}")
    return RunFolder(options.runs / name)


def load(run: str | Path, task: Any = None) -> Any:
    """The trained model: a torch.nn.Module in evaluation mode, a Keras model or a Gluon block, on the CPU.

    run: a run's folder, of which the newest checkpoint is used, RUN/best for its best one, or a checkpoint. If averages
    of the weights were evaluated (--ema), the model has these. task: the class, or FILE.py:CLASS, if it is no longer
    where it was in training; by default the file is run that the checkpoint names, so load only what you trust.

    A network as data gives a model from float32 images in [0, 1] to logits. The images are (n, channels, height,
    width), in TensorFlow (n, height, width, channels).

    Raises UserError if there is no intact checkpoint, the framework is missing, or the model has changed since.
    """
    path, saved = checkpoints.newest(Path(run))
    return trained_model(path, saved, lambda: _trained_target(path, saved, task))


def _trained_target(path: Path, saved: Checkpoint, task: Any) -> Target:
    name = saved.network.get("task")
    if name is None:
        return NetworkTarget(checkpoints.network(path, saved))
    if is_script(name):
        reason = f"{path}: was trained by the loop of {name}, which makes the model"
        raise UserError(reason, "make it as there, and give it the arrays of weights.safetensors")
    return load_trained(path, saved, task)


def _changed(options: Config | RuntimeOptions, defaults: Config | RuntimeOptions) -> dict[str, Any]:
    """The options that are not the default, except for --model."""
    default = dataclasses.asdict(defaults)
    given = dataclasses.asdict(options)
    return {name: value for name, value in given.items() if value != default[name] and name != "model"}


__all__ = ["RunFolder", "fit", "launch", "load", "start"]
