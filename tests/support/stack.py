"""Which frameworks this environment has. A test that needs another one is skipped, and says so."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import pytest

from support.environment import of_jobs

FRAMEWORKS = ("torch", "mxnet", "tensorflow")
INSTALLED = tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name))
FASTEST = next((name for name in ("mxnet", "torch", "tensorflow") if name in INSTALLED), "torch")
"""For jobs that test something else than a framework: the one that starts fastest."""
REFERENCE = (*INSTALLED, "torch")[0]
"""The framework whose runs in one process are compared with others."""


def cases(names: Iterable[str], short: Container[str]) -> list[Any]:
    """All names as parameters of a test; those that are not in `short` run in the whole matrix only."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.matrix) for name in names]


def reason(*frameworks: str) -> str:
    """Why a test of these frameworks is skipped; empty if all are installed."""
    missing = [name for name in FRAMEWORKS if name in frameworks and name not in INSTALLED]
    return f"needs {' and '.join(missing)}, which this environment does not have" if missing else ""


def require(*frameworks: str) -> None:
    """Skip the test that calls this, unless these frameworks are installed."""
    if text := reason(*frameworks):
        pytest.skip(text)


@functools.cache
def precision_problem(framework: str, precision: str) -> str:
    """Why a framework does not compute in a precision here, as training finds it, in a process like that of a job."""
    if precision == "fp32" or framework not in INSTALLED:
        return ""
    code = f"from hvdtrain.frameworks.arithmetic import precision_problem as p; print(p({framework!r}, {precision!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=of_jobs(), stdout=subprocess.PIPE, text=True, timeout=200, check=True)
    return done.stdout.strip()


def require_precision(framework: str, precision: str) -> None:
    """Skip the test that calls this, unless a framework computes in a precision on this processor."""
    if text := precision_problem(framework, precision):
        pytest.skip(f"{framework} does not compute in {precision} on this processor ({text})")


def needed_by(item: pytest.Item) -> set[str]:
    """The frameworks that a test needs: those of its mark `needs`, else those that its parameters and runs name."""
    if marks := [*item.iter_markers("needs")]:
        return {name for mark in marks for name in mark.args}
    callspec = getattr(item, "callspec", None)
    values = list(callspec.params.values()) if callspec else []
    values += [run for mark in item.iter_markers("trains") for run in mark.args]
    return {name for value in values for name in _named(value)}


def named_by(command: Sequence[str]) -> list[str]:
    """The framework that a command starts, if its words name one: that of the first such word."""
    words = (word.removeprefix("hvdtrain.").removesuffix("_lenet") for word in command)
    return [word for word in words if word in FRAMEWORKS][:1]


def _named(value: Any) -> Iterator[str]:
    """The framework that a parameter names: by itself, as the first of a tuple, or as its `framework`."""
    if isinstance(value, str):
        yield from {value.partition(".")[0]} & {*FRAMEWORKS}
    elif isinstance(value, tuple):
        yield from _named(value[0] if value else "")
    else:
        yield from _named(getattr(value, "framework", ""))


def skip_what_is_missing(items: Sequence[pytest.Item]) -> None:
    """Skip tests of missing frameworks. A case of the matrix takes the place of a test's only short cases."""
    for _, cases in itertools.groupby(items, lambda item: (item.path, getattr(item, "originalname", item.name))):
        short, others = [], []
        for item in cases:
            if text := reason(*needed_by(item)):
                item.add_marker(pytest.mark.skip(reason=text))
                short += [] if item.get_closest_marker("matrix") else [item]
            else:
                others.append(item)
        if short and others and all(item.get_closest_marker("matrix") for item in others):
            others[0].own_markers = [mark for mark in others[0].own_markers if mark.name != "matrix"]


def select(config: pytest.Config, items: list[pytest.Item], framework: str) -> None:
    """Deselect tests that need other frameworks only."""
    keep(config, items, lambda item: framework in (needed_by(item) or {framework}))


def keep(config: pytest.Config, items: list[pytest.Item], is_chosen: Callable[[pytest.Item], bool]) -> None:
    """Deselect all other tests."""
    divided: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        divided[is_chosen(item)].append(item)
    config.hook.pytest_deselected(items=divided[False])
    items[:] = divided[True]


class TestModule(pytest.Module):
    """A file of tests; it is skipped if it imports a framework that is not installed."""

    __test__ = False

    def collect(self) -> Any:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
            if text := reason((missing or "").partition(".")[0]):
                pytest.skip(text, allow_module_level=True)
            raise
