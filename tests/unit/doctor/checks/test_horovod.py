"""Horovod, MPI and their variables: missing, wrong, or built for others. Processes: they load a broken library."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.doctor import SITE, doctor, script
from support.jobs import BIN
from support.made_up_packages import BUILT, horovod_record
from support.stack import INSTALLED

from hvdtrain.doctor.check import CheckContext
from hvdtrain.doctor.checks.horovod import check_horovod
from hvdtrain.doctor.checks.launchers import check_allreduce
from hvdtrain.doctor.checks.mpi import built_for_another_mpi, check_mpi, identify
from hvdtrain.doctor.checks.variables import check_variables
from hvdtrain.system.rank_info import RankInfo


def test_horovod_not_installed(environment):
    environment.module("torch", version="2.15.0")
    finding = environment.finding(check_horovod)
    assert (finding.status, finding.text) == ("fail", "Horovod is not installed") and "make setup" in finding.remedy
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


OTHER = "it was built for a torch for CUDA 13.2, but the installed one is for "


@pytest.mark.parametrize(
    ("installed", "answer", "status", "text"),
    [
        ("2.16.1", {"cuda": "13.2"}, "fail", "it was built with torch 2.15.0, but 2.16.1 is installed"),
        ("2.15.0", {"cuda": "12.6"}, "fail", f"{OTHER}CUDA 12.6"),
        ("2.15.0", {"cuda": None}, "fail", f"{OTHER}CPUs"),
        # Horovod loads.
        ("2.16.0", {"built": BUILT}, "warn", "is newer than the 2.15.0 that Horovod was built with"),
        ("2.14.1", {"built": BUILT}, "warn", "is older than the 2.15.0 that Horovod was built with"),
        ("2.15.2", {"built": BUILT}, "ok", ""),
        ("2.15.0+cu132", {"built": BUILT}, "ok", ""),
    ],
)
def test_horovod_for_another_torch(environment, installed, answer, status, text):
    """A prebuilt wheel: only the record in its metadata is known."""
    environment.install(f"torch=={installed}", "numpy==2.5.5")
    environment.install("horovod==0.28.1+hvdtrain.p1.torch2.15.cuda13.2.nccl.openmpi4", hvdtrain=horovod_record())
    environment.module("horovod")
    error = {"horovod_error": "ImportError: undefined symbol: _ZN3c10"} if status == "fail" else {}
    environment.module("torch", version=installed, **answer, **error)
    finding = environment.findings(check_horovod)[0]
    assert finding.status == status and text in finding.text and ("2.15.0 that" in finding.text) == (status == "warn")
    if status == "fail":
        assert finding.remedy == "make setup STACK=pytorch, which rebuilds Horovod for the installed versions"


def test_mpirun_not_on_path(environment, tmp_path, monkeypatch):
    environment.module("horovod")
    environment.module("torch", version="2.15.0", built=BUILT)
    monkeypatch.setenv("PATH", str(tmp_path))
    mpirun, mpi4py = environment.findings(check_mpi)
    assert mpirun.status == "warn" and "mpirun is not on PATH" in mpirun.text and "PATH" in mpirun.remedy
    assert mpi4py.text == "mpi4py cannot be imported (not installed): --strategy mpi is not available"


def test_two_mpis_on_path(tmp_path):
    script(tmp_path / "bin" / "mpirun", 'echo "mpirun (Open MPI) 5.0.6"')
    result = doctor(tmp_path, "--only", "mpi", PATH=f"{tmp_path / 'bin'}:{BIN}")  # the machine may have more
    result.has("mpi", "warn", "2 MPIs on PATH", "Open MPI 5.0.6", str(BIN / "mpirun"), remedy="Horovod was built with")
    result.has("mpi", "fail", "mpirun is Open MPI 5.0.6, but mpi4py uses Open MPI", remedy="first on PATH")


def test_identify_mpi():
    for text, name in (
        ("mpirun (Open MPI) 4.1.8", ("Open MPI", "4.1.8")),
        ("Open MPI v4.1.4, package: Debian", ("Open MPI", "4.1.4")),
        ("HYDRA build details:\n    Version:      4.0.2\n", ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", ("Intel MPI", "2021.11")),
        ("what", ("an unknown MPI", "")),
    ):
        assert identify(text) == name


@pytest.mark.parametrize("mpirun, age", [("5.0.6", "new"), ("3.1.0", "old"), ("4.1.4", "")])
def test_mpi_against_that_of_horovod_s_build(environment, tmp_path, mpirun, age):
    environment.install("horovod==0.28.1", hvdtrain=horovod_record())
    findings = list(built_for_another_mpi(("Open MPI", mpirun)))
    text = f"mpirun is Open MPI {mpirun}, too {age} for Horovod, which was built with Open MPI 4.1.8"
    assert [finding.text for finding in findings] == ([text] if age else [])
    assert not list(built_for_another_mpi(("MPICH", "5.0.0")))


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


@pytest.mark.parametrize(
    ("launcher", "controller", "gloo", "problem"),
    [
        ("launch mpirun", "gloo", False, "HOROVOD_CONTROLLER=gloo under launch mpirun"),
        ("launch local", "mpi", True, "HOROVOD_CONTROLLER=mpi under launch local"),
        ("horovodrun", "mpi", True, "HOROVOD_CONTROLLER=mpi under horovodrun --gloo"),
        ("horovodrun", "gloo", True, ""),
        ("mpirun", "mpi", False, ""),
    ],
)
def test_controllers_that_the_launcher_does_not_provide(launcher, controller, gloo, problem, monkeypatch):
    monkeypatch.setenv("HOROVOD_CONTROLLER", controller)
    if gloo:
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    (finding,) = check_variables(CheckContext(RankInfo(launcher, 0, 2, 0), 2, time.monotonic() + 60))
    assert (finding.status == "fail") == bool(problem)
    assert not problem or (problem in finding.text and "unset HOROVOD_CONTROLLER" in finding.remedy)
