"""Software: broken, missing or mismatched packages, and environment variables."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.doctor import SITE, SYSTEM, doctor, requires, script
from support.jobs import BIN
from support.stack import INSTALLED


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


def test_framework_that_crashes_or_lacks_a_library(tmp_path):
    for name, line in (
        ("torch", "import os; os.kill(os.getpid(), 11)"),
        ("mxnet", "raise OSError('libcudart.so.11.0: no')"),
    ):
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(line)
    result = doctor(tmp_path, "--only", "frameworks", PYTHONPATH=str(tmp_path / "fake"))
    result.has("frameworks", "fail", "torch is installed but cannot be imported", "SIGSEGV", remedy="pip install")
    result.has("frameworks", "fail", "mxnet is installed but cannot be imported", "libcudart", remedy="CUDA")
    (tmp_path / "fake" / "mxnet" / "__init__.py").write_text("raise OSError('libquadmath.so.0: cannot open')")
    result = doctor(tmp_path, "--only", "frameworks", PYTHONPATH=str(tmp_path / "fake"))
    result.has("frameworks", "fail", "mxnet", "libquadmath", remedy="apt-get install libquadmath0")


@pytest.mark.needs("mxnet")
def test_numpy_too_new_for_mxnet(tmp_path):
    """NumPy 1.26, as far as MXNet can see: its version, and no numpy.bool."""
    fake = tmp_path / "fake"
    (fake / "numpy-1.26.4.dist-info").mkdir(parents=True)
    (fake / "numpy-1.26.4.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n")
    (fake / "sitecustomize.py").write_text(
        "import numpy\ndef gone(name):\n    raise AttributeError(f\"module 'numpy' has no attribute '{name}'\")\n"
        "numpy.__getattr__ = gone\n"
    )
    result = doctor(tmp_path, "--only", "numpy", "frameworks", "versions", PYTHONPATH=str(fake))
    result.has("numpy", "fail", "NumPy 1.26.4 is too new for MXNet", remedy="numpy<1.24")
    result.has("frameworks", "fail", "mxnet is installed but cannot be imported", "bool", remedy="numpy<1.24")
    result.has("versions", "warn", "numpy 1.26.4 (pinned 1.23.5)", remedy="make setup")


def test_mpirun_not_on_path(tmp_path):
    """All programs of the environment are on PATH but those of MPI."""
    for name in ("python", "horovodrun"):
        script(tmp_path / "bin" / name, f'exec {shlex.quote(str(BIN / name))} "$@"')
    requires("test", "!", "-e", "/usr/bin/mpirun")
    result = doctor(tmp_path, "--only", "mpi", PATH=f"{tmp_path / 'bin'}:{SYSTEM}")
    result.has("mpi", "warn", "mpirun is not on PATH", remedy="PATH")


def test_two_mpis_on_path(tmp_path):
    script(tmp_path / "bin" / "mpirun", 'echo "mpirun (Open MPI) 5.0.6"')
    result = doctor(tmp_path, "--only", "mpi", PATH=f"{tmp_path / 'bin'}:{BIN}")  # the machine may have more
    result.has("mpi", "warn", "2 MPIs on PATH", "Open MPI 5.0.6", str(BIN / "mpirun"), remedy="Horovod was built with")
    result.has("mpi", "fail", "mpirun is Open MPI 5.0.6, but mpi4py uses Open MPI", remedy="first on PATH")


def test_unknown_invalid_and_contradictory_variables(tmp_path):
    wrong = {
        "TF_CONFIG": "",
        "HOROVOD_FUSION_TRESHOLD": "1",
        "HOROVOD_CYCLE_TIME": "fast",
        "HOROVOD_CONTROLLER": "glo",
        "HOROVOD_TIMELINE": "/nowhere/t.json",
    }
    result = doctor(tmp_path, "--only", "variables", **wrong)
    result.has("variables", "fail", "TF_CONFIG is set but empty", remedy="unset TF_CONFIG")
    result.has("variables", "warn", "HOROVOD_FUSION_TRESHOLD is not a variable", remedy="HOROVOD_FUSION_THRESHOLD")
    result.has("variables", "fail", "HOROVOD_CYCLE_TIME=fast is not a number", remedy="unset")
    result.has("variables", "fail", "HOROVOD_CONTROLLER=glo is not one of gloo, mpi", remedy="unset")
    result.has("variables", "warn", "HOROVOD_TIMELINE=/nowhere/t.json", remedy="unset")
    wrong = {"TF_CONFIG": "{}", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "mpi"}
    result = doctor(tmp_path, "--only", "variables", **wrong)
    result.has("variables", "fail", "TF_CONFIG is not what MultiWorkerMirroredStrategy expects", remedy="unset it")
    result.has("variables", "fail", "contradict", remedy="unset HOROVOD_CPU_OPERATIONS")
    result = doctor(tmp_path, "--only", "variables", RANK="one", WORLD_SIZE="2")
    result.has("variables", "fail", "RANK=one", "must be integers", remedy="unset")
