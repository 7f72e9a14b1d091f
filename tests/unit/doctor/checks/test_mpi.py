"""MPI: which one is installed, and whether Horovod uses the same."""

from __future__ import annotations

import pytest
from support.doctor import doctor, script
from support.jobs import BIN
from support.made_up_packages import BUILT, horovod_record

from hvdtrain.doctor.checks.mpi import built_for_another_mpi, check_mpi, identify


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
