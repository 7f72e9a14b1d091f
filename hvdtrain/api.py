"""Training from Python and notebooks: in this process (`fit`), or in fresh ones (`launch`)."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import time
from typing import Any

from hvdtrain.cli.train import examine_host
from hvdtrain.config.options import Config
from hvdtrain.config.record import to_record
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import TrainingError
from hvdtrain.runs.folder import RunFolder
from hvdtrain.tasks.own import make_task


def fit(task: Any, config: Config | None = None, options: RuntimeOptions | None = None) -> RunFolder:
    """Train a task in this process; under a launcher, on each of its ranks.

    task: a class or an object with the methods of a task (docs/own.md). config: by default those of `Config` with
    --strategy single. Raises UserError if task or options do not allow it, TrainingError if training fails.
    """
    from hvdtrain.training.train import train

    kind = task if inspect.isclass(task) else type(task)
    config = config or Config(strategy="single")
    made = make_task(_name(kind), task, skip_bad_rows=config.on_bad_row == "skip")
    config = dataclasses.replace(config, model=made.name)
    return RunFolder(train(config, options or RuntimeOptions(), examine_host, made))


def _name(kind: type) -> str:
    """FILE.py:CLASS, or the name of a class that is in no file."""
    try:
        file = inspect.getfile(kind)
    except (OSError, TypeError):
        return kind.__qualname__
    return f"{file}:{kind.__qualname__}" if file.endswith(".py") else kind.__qualname__


def launch(task: str, ranks: int = 1, config: Config | None = None, options: RuntimeOptions | None = None) -> RunFolder:
    """Train FILE.py:CLASS in fresh processes on this host; their output goes to this one's.

    config: by default that of `Config`, with --strategy horovod. Raises TrainingError if the job fails.
    """
    options = options or RuntimeOptions()
    name = options.name or f"{task.rpartition(':')[2]}-np{ranks}-{time.strftime('%Y%m%d-%H%M%S')}"
    options = dataclasses.replace(options, name=name)
    given = {**_changed(config or Config(), Config()), **_changed(options, RuntimeOptions())}
    program = [sys.executable, "-m", "hvdtrain"]
    command = [*program, "launch", "local", "-n", str(ranks), "--", *program, "train", task, *_arguments(given)]
    ended = subprocess.run(command, check=False)
    if ended.returncode:
        raise TrainingError(f"the job ended with status {ended.returncode}", f"see the logs in {options.runs / name}")
    return RunFolder(options.runs / name)


def _changed(options: Config | RuntimeOptions, defaults: Config | RuntimeOptions) -> dict[str, Any]:
    """The options that are not the default, but for --model."""
    default = to_record(defaults)
    return {name: value for name, value in to_record(options).items() if value != default[name] and name != "model"}


def _arguments(given: dict[str, Any]) -> list[str]:
    arguments = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, tuple | list):
            arguments += [word for one in value for word in (option, str(one))]
        else:
            arguments += [option, str(value)]
    return arguments


__all__ = ["RunFolder", "fit", "launch"]
