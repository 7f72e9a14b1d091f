"""Environment variables of Horovod, TensorFlow and launchers."""

from __future__ import annotations

import time

import pytest
from support.doctor import doctor

from hvdtrain.doctor.check import CheckContext
from hvdtrain.doctor.checks.variables import check_variables
from hvdtrain.system.rank_info import RankInfo


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
