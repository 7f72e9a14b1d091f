"""Which frameworks this environment has. A test that needs another one is skipped, and says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

FRAMEWORKS = ("torch", "mxnet", "tensorflow")
INSTALLED = tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name))
FASTEST = next((name for name in ("mxnet", "torch", "tensorflow") if name in INSTALLED), "torch")
"""For jobs that test something else than a framework: the one that starts fastest."""
REFERENCE = (*INSTALLED, "torch")[0]
"""The framework whose runs in one process are compared with others."""


def reason(*frameworks: str) -> str:
    """Why a test of these frameworks is skipped; empty if all are installed."""
    missing = [name for name in FRAMEWORKS if name in frameworks and name not in INSTALLED]
    return f"needs {' and '.join(missing)}, which this environment does not have" if missing else ""


def require(*frameworks: str) -> None:
    """Skip the test that calls this, unless these frameworks are installed."""
    if text := reason(*frameworks):
        pytest.skip(text)


def needed_by(item: pytest.Item) -> set[str]:
    """The frameworks that a test needs: those of its mark `needs`, else those that its parameters and runs name."""
    if marks := [*item.iter_markers("needs")]:
        return {name for mark in marks for name in mark.args}
    callspec = getattr(item, "callspec", None)
    runs = [mark.args for mark in item.iter_markers("trains")]
    return set(_named([*callspec.params.values(), *runs] if callspec else runs))


def _named(value: Any) -> Iterator[str]:
    """Frameworks that a parameter names: as a text, in a tuple or a list, or as its `framework`."""
    if isinstance(value, str):
        yield from {value} & {*FRAMEWORKS}
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _named(part)
    else:
        yield from _named(getattr(value, "framework", ()))


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
