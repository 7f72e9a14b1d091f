"""Horovod: missing, or built for other frameworks than the installed ones. Processes: they load a broken library."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.doctor import SITE, doctor
from support.made_up_packages import BUILT, horovod_record
from support.stack import INSTALLED

from hvdtrain.doctor.checks.horovod import check_controllers, check_horovod
from hvdtrain.doctor.checks.launchers import check_allreduce


def test_horovod_not_installed(environment):
    environment.module("torch", version="2.15.0")
    finding = environment.finding(check_horovod)
    assert (finding.status, finding.text) == ("fail", "Horovod is not installed") and "make setup" in finding.remedy
    assert not environment.findings(check_controllers)
    assert {one.status for one in environment.findings(check_allreduce)} <= {"warn", "fail"}


def modified_horovod(folder: Path, versions: dict[str, str], replaced: dict[str, Path | None]) -> str:
    """PYTHONPATH of the installed Horovod with modifications.

    versions: of frameworks with which it appears to be built. replaced: the extension for a framework; None removes it.
    """
    real, mine = SITE / "horovod", folder / "horovod"
    if not real.is_dir():
        pytest.skip("needs Horovod")
    for name, extension in replaced.items():
        (mine / name).mkdir(parents=True)
        for entry in (real / name).iterdir():
            if not entry.name.startswith(("mpi_lib", "__pycache__")):
                (mine / name / entry.name).symlink_to(entry)
            elif extension and entry.suffix == ".so":
                shutil.copy(extension, mine / name / entry.name)
    for entry in real.iterdir():
        if entry.name not in (*replaced, "metadata.json", "__pycache__"):
            (mine / entry.name).symlink_to(entry)
    was = json.loads((real / "metadata.json").read_text())
    (mine / "metadata.json").write_text(json.dumps({**was, **versions}))
    return str(folder)


@pytest.fixture
def incompatible_extension(tmp_path) -> Path:
    """An extension with a symbol that no framework here defines."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if not compiler:
        pytest.skip("needs a C compiler")
    symbol, source, made = "_ZN3c1016of_another_torchEv", tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(f"extern void *{symbol}(void);\nvoid *PyInit_mpi_lib_v2(void) {{ return {symbol}(); }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    return made


@pytest.mark.needs("torch")
def test_horovod_extensions_that_are_missing_or_built_for_other_versions(incompatible_extension, tmp_path):
    replaced = {"torch": incompatible_extension, "mxnet": None}
    path = modified_horovod(tmp_path / "own", {"pytorch": "2.12.0"}, replaced)
    (tmp_path / "own" / "tensorflow").mkdir()
    (tmp_path / "own" / "tensorflow" / "__init__.py").write_text("raise ImportError")  # faster than the real one
    result = doctor(tmp_path, "--only", "horovod", PYTHONPATH=path)
    texts = ("for torch", "does not load", "undefined symbol", "another_torch", "it was built with torch 2.12.0")
    result.has("horovod", "fail", *texts, remedy="rebuilds Horovod")
    if "mxnet" in INSTALLED:
        result.has("horovod", "fail", "built without mxnet", remedy="make setup")


@pytest.mark.parametrize(
    "installed, cuda, texts",
    [
        ("2.16.1", "13.2", "it was built with torch 2.15.0, but 2.16.1 is installed"),
        ("2.15.0", "12.6", "it was built for a torch for CUDA 13.2, but the installed one is for CUDA 12.6"),
        ("2.15.0", None, "it was built for a torch for CUDA 13.2, but the installed one is for CPUs"),
    ],
)
def test_horovod_for_another_torch(environment, installed, cuda, texts):
    """A prebuilt wheel: only the record in its metadata is known."""
    environment.install(f"torch=={installed}", "numpy==2.5.5")
    environment.install("horovod==0.28.1+hvdtrain.p1.torch2.15.cuda13.2.nccl.openmpi4", hvdtrain=horovod_record())
    environment.module("horovod")
    environment.module("torch", version=installed, cuda=cuda, horovod_error="ImportError: undefined symbol: _ZN3c10")
    finding = environment.findings(check_horovod)[0]
    assert finding.status == "fail" and finding.text.endswith(texts)
    assert finding.remedy == "make setup STACK=pytorch, which rebuilds Horovod for the installed versions"


@pytest.mark.parametrize(
    "installed, age", [("2.16.0", "newer than"), ("2.14.1", "older than"), ("2.15.2", ""), ("2.15.0+cu132", "")]
)
def test_horovod_that_loads_with_another_torch(environment, installed, age):
    environment.install(f"torch=={installed}")
    environment.install("horovod==0.28.1", hvdtrain=horovod_record())
    environment.module("horovod")
    environment.module("torch", version=installed, built=BUILT)
    finding = environment.findings(check_horovod)[0]
    assert finding.status == ("warn" if age else "ok")
    assert (f"is {age} the 2.15.0 that Horovod was built with" in finding.text) == bool(age)
