"""Python and packages: stacks, missing and broken ones, and what is too new or too old."""

from __future__ import annotations

import sys

import packaging.requirements
import packaging.specifiers
import packaging.version
import pytest
from support.doctor import doctor
from support.made_up_packages import BUILT

from hvdtrain.doctor import quick
from hvdtrain.doctor.checks import horovod, software
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import require
from hvdtrain.system import stacks


def test_first_line_says_which_stack_it_is(environment):
    environment.python("3.13.1")
    environment.install("torch==2.15.0", "numpy==2.5.5", "horovod==0.28.1+hvdtrain.p1.torch2.15.cpu.openmpi4")
    environment.module("horovod")
    environment.module("torch", version="2.15.0", built=BUILT)
    line = "stack pytorch: Python 3.13.1, PyTorch 2.15.0, NumPy 2.5.5, Horovod 0.28.1 (Gloo, MPI)"
    assert environment.finding(software.check_stack) == ("ok", line, "")
    assert stacks.installed_versions()["stack"] == "pytorch"


def test_stack_of_what_is_installed_unless_set_up_recorded_it(environment):
    assert stacks.installed_stack() is None
    assert environment.findings(software.check_stack) == []
    environment.install("tensorflow-cpu==2.21.0")
    assert stacks.installed_stack() == stacks.STACKS["tensorflow"]
    environment.install("torch==2.15.0")
    assert stacks.installed_stack() is None
    assert "stack" not in stacks.installed_versions()
    mixture = environment.finding(software.check_stack)
    assert (mixture.status, mixture.remedy) == ("warn", "make setup STACK=all")
    assert mixture.text.startswith("none of the stacks all, pytorch, tensorflow, so not tested: Python 3.11.9, PyTorch")
    environment.marker("pytorch")
    assert stacks.installed_stack() == stacks.STACKS["pytorch"]
    assert environment.finding(software.check_stack).text.endswith("no Horovod; TensorFlow is not part of this stack")
    environment.marker("another")
    environment.install("mxnet-cu112==1.9.1")
    assert stacks.installed_stack() == stacks.STACKS["all"]


KERAS_3 = "tensorflow-cpu==2.21.0 keras==3.15.1"
TF_KERAS = "pip install --no-deps 'tf-keras==2.21.*'"
MXNET = "torch==2.13.0 mxnet==1.9.1"


@pytest.mark.parametrize(
    ("check", "python", "stack", "packages", "expected"),
    [
        (quick.check_python, "3.11.9", "", MXNET, ("ok", "Python 3.11.9", "")),
        (
            quick.check_python,
            *("3.13.0", "", MXNET),
            ("fail", "Python 3.13.0 is too new for the stack all, which needs Python 3.10 or 3.11", "STACK=pytorch"),
        ),
        (
            quick.check_python,
            *("3.15.2", "tensorflow", ""),
            ("fail", "too new for the stack tensorflow, which needs Python 3.10 to 3.13", "pytorch BASE_PYTHON=3.14"),
        ),
        (quick.check_python, "3.9.2", "tensorflow", "", ("fail", "too old for the stack tensorflow", "")),
        (quick.check_numpy, "3.11.9", "", "mxnet==1.9.1 numpy==2.5.5", ("fail", "2.5.5", "install 'numpy<1.24'")),
        (quick.check_numpy, "3.12.1", "", "mxnet==1.9.1 numpy==2.5.5", ("fail", "2.5.5", "BASE_PYTHON=3.11")),
        (software.check_keras, "3.11.9", "", KERAS_3, ("ok", "TensorFlow 2.21.0 has Keras 3.15.1", "")),
        (
            software.check_keras,
            *("3.11.9", "", "tensorflow-cpu==2.15.1 keras==2.15.0"),
            ("ok", "TensorFlow 2.15.1 has Keras 2.15.0", ""),
        ),
    ],
)
def test_versions_that_do_or_do_not_fit_together(environment, monkeypatch, check, python, stack, packages, expected):
    environment.python(python)
    environment.install(*packages.split())
    if stack:
        environment.marker(stack)
    if "mxnet" in packages:
        environment.module("mxnet")
    finding, (status, text, remedy) = environment.finding(check), expected
    assert finding.status == status and text in finding.text and remedy in finding.remedy, finding
    assert status != "ok" or not finding.remedy


@pytest.mark.parametrize(
    ("legacy", "status", "text"),
    [
        ("", "fail", "TF_USE_LEGACY_KERAS=1 asks for Keras 2: tf-keras is not installed"),
        ("2.21.3", "ok", "uses tf-keras 2.21.3"),
        ("2.20.1", "fail", "is too old for"),
        ("2.22.0", "fail", "tf-keras 2.22.0 is too new for TensorFlow 2.21.0, which needs tf-keras 2.21"),
    ],
)
def test_the_keras_that_a_variable_asks_for(environment, monkeypatch, legacy, status, text):
    assert environment.findings(software.check_keras) == [], "there is no TensorFlow"
    environment.install(*KERAS_3.split(), *([f"tf-keras=={legacy}"] if legacy else []))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    finding = environment.finding(software.check_keras)
    assert finding.status == status and text in finding.text
    assert (TF_KERAS in finding.remedy) == (status == "fail")


def test_what_a_stack_lacks_on_purpose_is_no_warning(environment):
    environment.python("3.12.1")
    environment.install("torch==2.15.0")
    environment.module("torch", version="2.15.0", built=BUILT)
    environment.module("horovod")
    findings = environment.findings(software.check_frameworks)
    assert {finding.status for finding in findings} == {"ok"}
    mxnet = "mxnet is not part of the stack pytorch and needs Python 3.10 or 3.11: "
    tensorflow = "tensorflow is not part of the stack pytorch: make setup STACK=tensorflow"
    assert [finding.text for finding in findings] == [
        "torch 2.15.0",
        f"{mxnet}make setup STACK=all BASE_PYTHON=3.11",
        tensorflow,
    ]
    environment.install("tensorflow==2.21.0")
    environment.marker("pytorch")
    error = "ImportError: Extension horovod.tensorflow has not been built"
    environment.module("tensorflow", version="2.21.0", horovod_error=error)
    horovod_s = [finding.text for finding in environment.findings(horovod.check_horovod) if finding.status == "ok"]
    assert "Horovod was not built for tensorflow, which is not part of the stack pytorch" in horovod_s


def test_missing_part_of_a_stack(environment, tmp_path):
    environment.marker("tensorflow")
    (failed,) = environment.findings(software.check_frameworks)
    assert (failed.status, failed.remedy) == ("fail", "make setup STACK=tensorflow")
    environment.module("torch", version="2.15.0")
    missing = environment.findings(software.check_frameworks)[-1]
    assert missing == ("warn", "tensorflow is not installed, but part of the stack", "make setup STACK=tensorflow")
    # Set-up would find nothing to do.
    environment.marker("pytorch")
    for name in (".hvdtrain-setup", ".hvdtrain-horovod"):
        environment.write(name)
    stamps = f"{tmp_path}/.hvdtrain-setup {tmp_path}/.hvdtrain-horovod"
    command = f"rm -f {stamps} && make setup STACK=pytorch VENV={tmp_path}"
    assert environment.finding(quick.check_numpy) == ("fail", "NumPy is not installed", command)


def test_numpy_that_torch_cannot_use(environment):
    environment.install("torch==2.2.0", "numpy==2.5.5")
    environment.module("torch", version="2.2.0", numpy_error="RuntimeError: Numpy is not available")
    finding = environment.findings(software.check_frameworks)[0]
    assert finding.text == "torch 2.2.0 cannot use NumPy 2.5.5 (RuntimeError: Numpy is not available)"
    assert (finding.status, finding.remedy) == ("fail", "make setup STACK=pytorch")


def test_packages_in_versions_that_a_framework_does_not_allow(environment):
    assert packaging.requirements and packaging.specifiers and packaging.version  # loaded: they are not in this one
    needs = ("numpy>=1.26.0", "protobuf<8.0.0,>=6.31.1", "wrapt>=1.11", "h5py<3.15; extra == 'x'")
    environment.install("tensorflow-cpu==2.21.0", requires=needs)
    environment.install("numpy==1.23.5", "protobuf==8.1", "wrapt==2.0", "h5py==9")
    findings = environment.findings(software.check_requirements)
    assert {(finding.status, finding.remedy) for finding in findings} == {("warn", "make setup STACK=tensorflow")}
    assert [finding.text for finding in findings] == [
        "tensorflow-cpu 2.21.0 requires numpy>=1.26.0, but 1.23.5 is installed",
        "tensorflow-cpu 2.21.0 requires protobuf<8.0.0,>=6.31.1, but 8.1 is installed",
    ]


def test_error_for_a_framework_that_the_stack_does_not_have(environment, monkeypatch):
    environment.python("3.12.1")
    environment.marker("pytorch")
    monkeypatch.setitem(sys.modules, "mxnet", None)
    reason = r"mxnet cannot be imported \(.*\): it is not part of the stack pytorch and needs Python 3.10 or 3.11"
    with pytest.raises(UserError, match=f"{reason}; run: make setup STACK=all BASE_PYTHON=3.11"):
        require(["mxnet"], "mxnet")


def test_framework_that_crashes_or_lacks_a_library(tmp_path):
    for name, line in (
        ("torch", "import os; os.kill(os.getpid(), 11)"),
        ("mxnet", "raise OSError('libcudart.so.11.0: no')"),
        ("tensorflow", "raise ImportError"),  # faster than the real one
    ):
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(line)
    result = doctor(tmp_path, "--only", "frameworks", PYTHONPATH=str(tmp_path / "fake"))
    result.has("frameworks", "fail", "torch is installed but cannot be imported", "SIGSEGV", remedy="pip install")
    result.has("frameworks", "fail", "mxnet is installed but cannot be imported", "libcudart", remedy="CUDA")
    (tmp_path / "fake" / "mxnet" / "__init__.py").write_text("raise OSError('libquadmath.so.0: cannot open')")
    result = doctor(tmp_path, "--only", "frameworks", PYTHONPATH=str(tmp_path / "fake"))
    result.has("frameworks", "fail", "mxnet", "libquadmath", remedy="apt-get install libquadmath0")


def test_a_broken_numpy_is_named_and_no_framework_is_installed_again(environment):
    environment.install("numpy==1.23.5", "torch==2.15.0", "mxnet==1.9.1")
    ended = Completed(1, "numpy\n", "ImportError: libcblas.so: cannot open shared object file\n", 9.0)
    environment.context.once("packages", lambda: ended)
    for name in ("torch", "mxnet"):
        environment.module(name, framework_error="ImportError: libcblas.so: cannot open shared object file")
    findings = environment.findings(software.check_packages) + environment.findings(software.check_frameworks)
    failed = [finding for finding in findings if finding.status == "fail"]
    assert failed[0].text == f"numpy cannot be used ({ended.reason()})" and len(failed) == 3
    assert {finding.remedy.partition(" -m ")[2] for finding in failed} == {
        "pip install --force-reinstall --no-deps numpy==1.23.5"
    }
