"""Horovod, MPI and their variables: missing, wrong, or built for others. Processes: they load a broken library."""

from __future__ import annotations

import time

import pytest
from support.doctor import doctor
from support.environment import script
from support.jobs import BIN
from support.made_up_packages import BUILT, horovod_record

from hvdtrain.doctor.checks.horovod import built_for_another_mpi, check_allreduce, check_horovod, check_mpi, identify
from hvdtrain.doctor.checks.variables import check_variables
from hvdtrain.doctor.context import CheckContext
from hvdtrain.system.rank_info import RankInfo


def test_horovod_not_installed(environment):
    environment.module("torch", version="2.15.0")
    finding = environment.finding(check_horovod)
    assert (finding.status, finding.text) == ("fail", "Horovod is not installed") and "make setup" in finding.remedy
    assert {one.status for one in environment.findings(check_allreduce)} <= {"warn", "fail"}


@pytest.mark.needs("torch", "mxnet")  # as the stack of this environment has
def test_horovod_extensions_that_are_missing_or_built_for_other_versions(tmp_path):
    for name, text in {
        "torch/__init__.py": "__version__ = '2.13.0'",
        "mxnet/__init__.py": "__version__ = '1.9.1'",
        "tensorflow/__init__.py": "raise ImportError",  # faster than the real one
        "horovod/__init__.py": "",
        "horovod/metadata.json": '{"pytorch": "2.12.0"}',
        "horovod/torch/__init__.py": "raise ImportError('mpi_lib_v2.so: undefined symbol: _ZN3c107anotherEv')",
        "horovod/mxnet/__init__.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    result = doctor(tmp_path, "--only", "horovod", PYTHONPATH=str(tmp_path))
    texts = ("for torch", "does not load (undefined symbol: _ZN3c107anotherEv)", "built with torch 2.12.0, but 2.13.0")
    result.has("horovod", "fail", *texts, remedy="rebuilds Horovod")
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


@pytest.mark.parametrize("mpirun, age", [("5.0.6", "new"), ("3.1.0", "old"), ("4.1.4", "")])
def test_mpi_against_that_of_horovod_s_build(environment, tmp_path, mpirun, age):
    environment.install("horovod==0.28.1", hvdtrain=horovod_record())
    findings = list(built_for_another_mpi(("Open MPI", mpirun)))
    text = f"mpirun is Open MPI {mpirun}, too {age} for Horovod, which was built with Open MPI 4.1.8"
    assert [finding.text for finding in findings] == ([text] if age else [])
    assert not list(built_for_another_mpi(("MPICH", "5.0.0")))


CONTROLLER, GLOO = "HOROVOD_CONTROLLER", {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("launcher", "variables", "status", "text", "remedy"),
    [
        ("none", {"TF_CONFIG": ""}, "fail", "TF_CONFIG is set but empty", "unset TF_CONFIG"),
        ("none", {"TF_CONFIG": "{}"}, "fail", "is not what MultiWorkerMirroredStrategy expects", "unset it"),
        ("none", {"RANK": "one", "WORLD_SIZE": "2"}, "fail", "RANK=one", "unset"),
        ("none", {"HOROVOD_FUSION_TRESHOLD": "1"}, "warn", "not a variable", "HOROVOD_FUSION_THRESHOLD"),
        ("none", {"HOROVOD_CYCLE_TIME": "fast"}, "fail", "HOROVOD_CYCLE_TIME=fast is not a number", "unset"),
        ("none", {CONTROLLER: "glo"}, "fail", "HOROVOD_CONTROLLER=glo is not one of gloo, mpi", "unset"),
        ("none", {"HOROVOD_TIMELINE": "/nowhere/t.json"}, "warn", "is in a folder that is not writable", "unset"),
        ("none", {CONTROLLER: "gloo", "HOROVOD_CPU_OPERATIONS": "mpi"}, "fail", "contradict", "HOROVOD_CPU_OPERATIONS"),
        ("launch mpirun", {CONTROLLER: "gloo"}, "fail", "=gloo under launch mpirun", f"unset {CONTROLLER}"),
        ("launch local", {CONTROLLER: "mpi", **GLOO}, "fail", "=mpi under launch local", f"unset {CONTROLLER}"),
        ("horovodrun", {CONTROLLER: "mpi", **GLOO}, "fail", "=mpi under horovodrun --gloo", f"unset {CONTROLLER}"),
        ("horovodrun", {CONTROLLER: "gloo", **GLOO}, "ok", "none of them unknown or contradictory", ""),
        ("mpirun", {CONTROLLER: "mpi"}, "ok", "1 HOROVOD_* variable(s) set", ""),
    ],
)
def test_unknown_invalid_and_contradictory_variables(launcher, variables, status, text, remedy, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    size = 1 if launcher == "none" else 2
    (finding,) = check_variables(CheckContext(RankInfo(launcher, 0, size, 0), size, time.monotonic() + 60))
    assert finding.status == status and text in finding.text and remedy in finding.remedy


def test_identify_mpi():
    for text, name in (
        ("mpirun (Open MPI) 4.1.8", ("Open MPI", "4.1.8")),
        ("Open MPI v4.1.4, package: Debian", ("Open MPI", "4.1.4")),
        ("HYDRA build details:\n    Version:      4.0.2\n", ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", ("Intel MPI", "2021.11")),
        ("what", ("an unknown MPI", "")),
    ):
        assert identify(text) == name
