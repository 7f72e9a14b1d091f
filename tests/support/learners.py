"""Learners of any framework in the process of a test, and the tasks of tests/support/tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.registry import find_strategy, on_group
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.strategy import Group
from hvdtrain.system.python_files import load_object
from hvdtrain.tasks.target import Target
from hvdtrain.tasks.user import UserTask, make_task

TASKS = Path(__file__).with_name("tasks")


def learner(framework: str, target: Target, group: Group | None = None, **options: Any) -> Learner:
    """A learner with these options, among the ranks of a group, by default alone."""
    config = Config(**{"framework": framework, "strategy": "single", **options})
    entry = find_strategy(config)
    group, runtime = group or SingleProcess(), RuntimeOptions(device="cpu", devices=2, quiet=True)
    strategy = on_group(entry, config, runtime, group)
    if not strategy:
        strategy = entry.strategy(config, runtime, *([group] if entry.connection else []))
    return entry.learner(target, target.initial_weights(config), strategy)


def task_class(framework: str, name: str) -> type:
    """A class of the framework's file in TASKS."""
    return load_object(f"{TASKS}/of_{framework}.py:{name}", "--model")


def task(framework: str, name: str, **changes: Any) -> UserTask:
    """That class as a task, with other attributes or methods."""
    kind = task_class(framework, name)
    return make_task(f"{TASKS}/of_{framework}.py:{name}", type(name, (kind,), changes) if changes else kind)
