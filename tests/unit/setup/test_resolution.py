"""Each stack has a version, with hashes, of everything that set-up installs on each of its Pythons and machines.

Processes: uv resolves with the package index, as set-up does on such a machine, and downloads nothing but metadata.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.markers import Marker
from support.environment import of_jobs
from support.jobs import ROOT
from support.setup import SETUP, STACKS, pinned_uv

MACHINES = ("x86_64", "aarch64")


def conf(stack: str) -> SimpleNamespace:
    """The variables of a stack's stack.conf."""
    text = (SETUP / "stacks" / stack / "stack.conf").read_text()
    return SimpleNamespace(**{"MACHINES": " ".join(MACHINES), **dict(re.findall(r'^([A-Z_]+)="(.*)"$', text, re.M))})


GRID = [
    (stack, python, machine)
    for stack in STACKS
    for python, machine in product(conf(stack).PYTHONS.split(), conf(stack).MACHINES.split())
]
SHORT = {
    (stack, python, machine)
    for stack, python, machine in GRID
    if python == "3.10" or (python == conf(stack).PYTHONS.split()[0] and machine == "x86_64")
}


def pins(file: Path, python: str, machine: str) -> dict[str, str]:
    """The version of each package that a file pins for a Python on a machine."""
    for_them = {"python_version": python, "python_full_version": f"{python}.9", "platform_machine": machine}
    lines = re.findall(r"^([a-z0-9-]+)==([^\s;]+)(?: ; ([^\\\n]+))?", file.read_text(), re.M)
    chosen = [(name, version) for name, version, marker in lines if not marker or Marker(marker).evaluate(for_them)]
    assert len(chosen) == len(dict(chosen)), "one version of each"
    return dict(chosen)


@pytest.mark.needs()
@pytest.mark.parametrize("stack", STACKS)
def test_the_lock_and_the_constraints_have_the_same_versions_on_each_python(stack):
    folder = SETUP / "stacks" / stack
    for _, python, machine in (one for one in GRID if one[0] == stack):
        pinned = [pins(file, python, machine) for file in sorted(folder.glob("*.txt"))]
        assert pins(folder / "requirements.lock", python, machine) == {
            name: version for one in pinned for name, version in one.items()
        }


class Index:
    """The package index, without the user's other sources: those may have builds that no lock knows."""

    def __init__(self) -> None:
        environment = {name: value for name, value in of_jobs().items() if not name.startswith("UV_")}
        said = subprocess.run([sys.executable, "-I", SETUP / "settings.py"], capture_output=True, text=True).stdout
        self.uv = pinned_uv()
        self.environment = environment | dict(line.split("=", 1) for line in said.splitlines())
        for name in ("UV_FIND_LINKS", "UV_INDEX"):
            self.environment.pop(name, None)

    def resolve(self, requirements: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
        """What `uv pip compile` ended with for these requirements."""
        command = (self.uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--python", sys.executable)
        return subprocess.run(
            [*command, *options, "-"], input=requirements, env=self.environment, capture_output=True, text=True
        )

    def missing(self, stack: str, python: str, machine: str) -> str:
        """What set-up would install there and the lock lacks, or why nothing can be installed; empty if all is well."""
        folder = SETUP / "stacks" / stack
        done = self.resolve(
            f"hvdtrain[{conf(stack).EXTRAS}] @ {ROOT.as_uri()}\nopenmpi\n",
            *("--python-version", python, "--python-platform", f"{machine}-unknown-linux-gnu"),
            *("--only-binary", ":all:", "--no-binary", "hvdtrain", "--no-build-isolation"),
            *("-c", folder / "constraints.txt", *(folder.glob("locked-only.txt")), SETUP / "horovod" / "build.txt"),
        )
        locked = pins(folder / "requirements.lock", python, machine).items()
        chosen = set(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", done.stdout, re.M))
        lacks = ", ".join(f"{name} {version}" for name, version in sorted(chosen - locked))
        return done.stderr or lacks


@pytest.fixture(scope="module")
def index():
    one = Index()
    if not one.uv:
        pytest.skip("needs uv, which cannot be had here")
    if one.resolve("wheel==0.48.0", "--no-cache", "--no-deps").returncode:
        pytest.skip("needs the package index, which cannot be reached")
    return one


@pytest.mark.needs()
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "grid", [sorted(SHORT), pytest.param(sorted({*GRID} - SHORT), marks=pytest.mark.matrix)], ids=["short", "matrix"]
)
def test_everything_that_set_up_installs_is_in_the_lock(index, grid):
    with ThreadPoolExecutor(len(grid)) as pool:
        found = pool.map(lambda one: index.missing(*one), grid)
    assert {one: said for one, said in zip(grid, found, strict=True) if said} == {}
