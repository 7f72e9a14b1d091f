"""Horovod: missing, or built for other frameworks than the installed ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.doctor import SITE, SYSTEM, doctor
from support.made_up_packages import BUILT, horovod_record
from support.stack import INSTALLED

from hvdtrain.doctor.checks.horovod import check_horovod


@pytest.fixture(scope="module")
def without_horovod(tmp_path_factory) -> Path:
    """The bin folder of an environment with all packages but Horovod."""
    folder = tmp_path_factory.mktemp("no-horovod")
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    subprocess.run([base, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for entry in SITE.iterdir():
        if not entry.name.startswith("horovod") and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder / "venv" / "bin"


def test_horovod_not_installed(without_horovod, tmp_path):
    result = doctor(tmp_path, "--only", "horovod", "controllers", "allreduce", PATH=f"{without_horovod}:{SYSTEM}")
    result.has("horovod", "fail", "Horovod is not installed", remedy="make setup")
    assert result.status == 1


def modified_horovod(folder: Path, versions: dict[str, str], extension: Path | None, *replaced: str) -> str:
    """PYTHONPATH of the installed Horovod with modifications.

    versions: of frameworks with which it appears to be built. extension: the extension for each framework in
    `replaced`; None removes it.
    """
    real, mine = SITE / "horovod", folder / "horovod"
    if not real.is_dir():
        pytest.skip("needs Horovod")
    for name in replaced:
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
def test_horovod_extensions_built_for_other_versions(incompatible_extension, tmp_path):
    versions = {"pytorch": "2.12.0", "tensorflow": "2.14.0"}
    path = modified_horovod(tmp_path / "own", versions, incompatible_extension, "torch", "mxnet")
    result = doctor(tmp_path, "--only", "horovod", PYTHONPATH=path)
    texts, remedy = ("does not load", "undefined symbol", "another_torch"), "rebuilds Horovod"
    result.has("horovod", "fail", "for torch", *texts, "it was built with torch 2.12.0", remedy=remedy)
    if "mxnet" in INSTALLED:
        mxnet = result.has("horovod", "fail", "for mxnet", *texts, remedy=remedy)
        assert "built with" not in mxnet["text"]
    if "tensorflow" in INSTALLED:
        result.has("horovod", "warn", "is newer than the 2.14.0 that Horovod was built with", remedy="make setup")


def test_horovod_built_without_a_framework(tmp_path):
    result = doctor(
        tmp_path, "--only", "horovod", PYTHONPATH=modified_horovod(tmp_path / "own", {}, None, "mxnet", "torch")
    )
    for name in {"mxnet", "torch"} & {*INSTALLED}:
        result.has("horovod", "fail", f"built without {name}", remedy="make setup")


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
