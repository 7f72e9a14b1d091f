"""Tests have neither the settings nor the home of who runs them, their jobs nothing of a library or too much memory.

In a pytest process, as that begins so.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys

import pytest
from support.jobs import ROOT, run

from hvdtrain.errors import UserError
from hvdtrain.system import arithmetic

OTHERS = """
import os
from pathlib import Path

from support.jobs import run

os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/of/a/library"  # while pytest collects tests


def test_job(tmp_path):
    status, output = run(["bash", "-ic", "env; echo HOME is ~"], tmp_path, GIVEN="here")
    variables = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert {"GIVEN", "OTHER", "HVDTRAIN_DATA"} <= variables.keys()
    assert not {"HVDTRAIN_LAUNCHER", "SLURM_JOB_ID", "RANK", "PYTHONDONTWRITEBYTECODE"} & variables.keys()
    assert not {"LC_ALL", "PYTHONUTF8", "PYTHONSAFEPATH"} & variables.keys()
    assert "FORCE_COLOR" not in variables and variables.get("COLUMNS") != "40"
    assert "TORCHINDUCTOR_CACHE_DIR" not in variables
    assert f"HOME is {Path.home()}" in output and Path.home().name.startswith("home-of-tests-")
    assert (Path.home() / ".cache" / "installed").exists()
    print(Path.home())
"""
"""The shell is an interactive one, as it reads ~/.bashrc."""


def test_settings_and_home_of_the_user_have_no_effect(tmp_path):
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    (home / ".cache" / "installed").touch()
    (home / ".bashrc").write_text(f"touch {tmp_path}/read\n")
    (tmp_path / "test_others.py").write_text(OTHERS)
    settings = {"HVDTRAIN_LAUNCHER": "x", "HVDTRAIN_DATA": "x", "SLURM_JOB_ID": "1", "RANK": "1", "OTHER": "x"}
    settings |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "tests")}
    settings |= {"COLUMNS": "40", "FORCE_COLOR": "1", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "conftest", "-p", "no:cacheprovider", "test_others.py"]
    command = ["env", "-u", "PYTEST_XDIST_WORKER", *command]
    status, output = run(command, tmp_path, **settings)
    assert status == 0, output
    assert not (tmp_path / "read").exists(), "of another home"
    (made,) = [line for line in output.splitlines() if "home-of-tests-" in line]
    assert not os.path.exists(made)


def test_assertions_that_python_removes_are_missed(tmp_path):
    command = [sys.executable, "-O", "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--collect-only"]
    status, output = run(command, tmp_path, PYTHONPATH=str(ROOT / "tests"))
    assert status == 4 and "unset PYTHONOPTIMIZE" in output, output


OF_FRAMEWORKS = """
import os

import pytest


@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_case(framework):
    pass


@pytest.mark.needs("mxnet", "tensorflow")
def test_needs():
    pass


def test_any():
    assert os.environ.get("DNNL_MAX_CPU_ISA") == os.environ["EXPECTED"]
"""


def test_tests_of_a_framework_limited_to_avx2(tmp_path):
    """Those that name no framework may be of each, and without AVX-512 nothing is to be limited."""
    (tmp_path / "test_others.py").write_text(OF_FRAMEWORKS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "conftest", "-p", "no:cacheprovider", "--avx2"]
    given = {"PYTHONPATH": str(ROOT / "tests"), "EXPECTED": "AVX2"}
    status, output = run([*command, "--framework", "torch", "test_others.py"], tmp_path, **given)
    assert status == 0, output
    if arithmetic.processor().flags >= arithmetic.AVX512:
        found = re.findall(r"::(\S+)", output)
        assert found == ["test_case[torch]", "test_any"] and " MKL_CBWR=AVX2 " in output
    else:
        assert "this processor has no AVX-512" in output and "test_any" not in output


LIMIT = 64 << 20
limited_group = runpy.run_path(str(ROOT / "benchmarks" / "limited_memory.py"))["limited_memory"]


def test_command_cannot_use_more_than_the_limit():
    try:
        with limited_group(LIMIT) as group:
            fits, too_much = (
                subprocess.run([*group.command, sys.executable, "-c", f"bytearray(b'1') * {size}"]).returncode
                for size in (LIMIT // 2, LIMIT * 2)
            )
            peak = group.peak
    except UserError as error:
        pytest.skip(str(error))
    assert (fits, too_much) == (0, -signal.SIGKILL)
    assert peak in (0, LIMIT)
    assert not os.path.exists(group.peak_file), "the group is removed"


@pytest.mark.matrix
def test_the_tests_for_gpus_work_in_a_rehearsal_on_the_cpu():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu"]
    chosen = "single or second or doctor or not_finite_ends"
    status, output = run([*command, "-k", chosen], ROOT, timeout_s=900, GPU_REHEARSAL="1")
    assert status == 0, output[-6000:]
    assert "a rehearsal on the CPU, which proves nothing about GPUs" in output
