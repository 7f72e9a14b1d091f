"""Set-up links the PyTorch of another Python, with what it requires, and cannot change it."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distributions
from pathlib import Path

import pytest
from support.jobs import ROOT

spec = importlib.util.spec_from_file_location("system_torch", ROOT / "setup" / "system_torch.py")
assert spec and spec.loader
system_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(system_torch)


def add_package(site: Path, name: str, *requires: str, lists_files: bool = True) -> None:
    module = name.replace("-", "_")
    (site / module).mkdir(parents=True)
    (site / module / "__init__.py").write_text(f"name = {name!r}\n")
    about = site / f"{module}-1.0.dist-info"
    about.mkdir()
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {line}" for line in requires)]
    (about / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    (about / "INSTALLER").write_text("pip\n")
    if lists_files:
        (about / "RECORD").write_text(f"{module}/__init__.py,,\n{about.name}/METADATA,,\n../../bin/{name},,\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A Python's packages: PyTorch, what it requires, and others."""
    site = tmp_path / "site-packages"
    add_package(site, "torch", "sympy>=1", "cuda-parts[blas]; python_version > '3'", "opt; extra == 'o'", "numpy<2")
    add_package(site, "sympy", "mpmath", lists_files=False)
    for name in ("mpmath", "blas", "opt", "numpy", "other"):
        add_package(site, name)
    add_package(site, "cuda-parts", "blas; extra == 'blas'", "fft; extra == 'fft'")
    return site


def find(site: Path):
    return {system_torch.normal(item.metadata["Name"]): item for item in distributions(path=[str(site)])}


def test_pytorch_comes_with_all_that_it_requires_and_nothing_else(site):
    closure, requirements = system_torch.required(find(site), "torch")
    assert set(closure) == {"torch", "sympy", "mpmath", "cuda-parts", "blas", "numpy"}
    assert "numpy<2" in map(str, requirements)
    assert "numpy" in system_torch.OWN  # pinned, unless PyTorch requires another version


def test_linked_packages_can_be_imported_but_not_removed(site, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    for name in ("torch", "sympy"):
        system_torch.link(find(site)[name], folder)
    assert {path.name for path in folder.iterdir()} == {
        "torch",
        "torch-1.0.dist-info",
        "sympy",
        "sympy-1.0.dist-info",
    }
    assert (folder / "torch").resolve() == site / "torch"
    linked = find(folder)
    assert linked["torch"].version == "1.0"
    # pip removes the files that a package lists, and fails without a list.
    assert linked["torch"].files is None and linked["sympy"].files is None
    assert before == {path: path.stat().st_mtime_ns for path in site.rglob("*")}
