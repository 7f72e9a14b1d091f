"""Stacks: which one an environment is, and what is too new or too old in it. Packages and Pythons are made up."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import packaging.requirements
import packaging.specifiers
import packaging.version
import pytest

from hvdtrain.doctor.check import Check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks import horovod, mpi, requirements, software, stack
from hvdtrain.doctor.findings import Finding
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import require
from hvdtrain.system import stacks
from hvdtrain.system.rank_info import RankInfo
from hvdtrain.system.stacks import DISTRIBUTIONS


class Environment:
    """An environment of made-up packages, in which checks run without importing any."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._site, self._monkeypatch = folder, folder / "site", monkeypatch
        self._site.mkdir()
        monkeypatch.setattr(sys, "prefix", str(folder))
        standard_library = [path for path in sys.path if path.startswith(sys.base_prefix) and "-packages" not in path]
        monkeypatch.setattr(sys, "path", [str(self._site), *standard_library])
        for name in (*DISTRIBUTIONS, "horovod", "tensorboard", "pkg_resources"):  # other tests may have imported them
            monkeypatch.delitem(sys.modules, name, raising=False)
        self.context = CheckContext(RankInfo("none", 0, 1, 0), 1, time.monotonic() + 60)
        self.python("3.11.9")

    def python(self, version: str) -> None:
        """Another Python, as far as its version goes."""
        self._monkeypatch.setattr("platform.python_version", lambda: version)
        self._monkeypatch.setattr(sys, "version_info", tuple(map(int, version.split("."))))

    def marker(self, name: str) -> None:
        (self._folder / ".hvdtrain-stack").write_text(f"{name}\n")

    def write(self, name: str, text: str = "") -> None:
        (self._folder / name).write_text(text)

    def install(self, *packages: str, requires: tuple[str, ...] = (), **files: str) -> None:
        """packages: such as `torch==2.15.0`. files: next to the metadata of each."""
        for name, _, version in (one.partition("==") for one in packages):
            folder = self._site / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
            for file, text in files.items():
                (folder / f"{file}.json").write_text(text)

    def module(self, name: str, **answer: object) -> None:
        """A module that can be found; what importing it, and Horovod for it, would give."""
        (self._site / name).mkdir()
        (self._site / name / "__init__.py").touch()
        if answer:
            self.context.once(f"framework {name}", lambda: answer)

    def findings(self, check: Check) -> list[Finding]:
        return list(check(self.context))

    def finding(self, check: Check) -> Finding:
        (found,) = self.findings(check)
        return found


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Environment:
    return Environment(tmp_path, monkeypatch)


BUILT = {"gloo": 1, "mpi": 1, "nccl": 0}


def test_first_line_says_which_stack_it_is(environment):
    environment.python("3.13.1")
    environment.install("torch==2.15.0", "numpy==2.5.5", "horovod==0.28.1+hvdtrain.p1.torch2.15.cpu.openmpi4")
    environment.module("horovod")
    environment.module("torch", version="2.15.0", built=BUILT)
    line = "stack pytorch: Python 3.13.1, PyTorch 2.15.0, NumPy 2.5.5, Horovod 0.28.1 (Gloo, MPI)"
    assert environment.finding(stack.check_stack) == ("ok", line, "")
    assert stacks.installed_versions()["stack"] == "pytorch"


def test_stack_of_what_is_installed_unless_set_up_recorded_it(environment):
    assert stacks.installed_stack() is None
    assert environment.findings(stack.check_stack) == []
    environment.install("tensorflow-cpu==2.21.0")
    assert stacks.installed_stack() == stacks.STACKS["tensorflow"]
    environment.install("torch==2.15.0")
    assert stacks.installed_stack() is None
    assert "stack" not in stacks.installed_versions()
    mixture = environment.finding(stack.check_stack)
    assert (mixture.status, mixture.remedy) == ("warn", "make setup STACK=all")
    assert mixture.text.startswith("none of the stacks all, pytorch, tensorflow, so not tested: Python 3.11.9, PyTorch")
    environment.marker("pytorch")
    assert stacks.installed_stack() == stacks.STACKS["pytorch"]
    assert environment.finding(stack.check_stack).text.endswith("no Horovod; TensorFlow is not part of this stack")
    environment.marker("another")
    environment.install("mxnet-cu112==1.9.1")
    assert stacks.installed_stack() == stacks.STACKS["all"]


def test_python_against_the_stack(environment):
    environment.install("torch==2.13.0", "mxnet==1.9.1")
    assert environment.finding(software.check_python).status == "ok"
    environment.python("3.13.0")
    text = "Python 3.13.0 is too new for the stack all, which needs Python 3.10 or 3.11"
    assert environment.finding(software.check_python) == ("fail", text, "make setup STACK=pytorch")
    environment.marker("tensorflow")
    environment.python("3.14.2")
    text = "Python 3.14.2 is too new for the stack tensorflow, which needs Python 3.10 to 3.13"
    remedy = "make setup STACK=pytorch BASE_PYTHON=3.13"
    assert environment.finding(software.check_python) == ("fail", text, remedy)
    environment.python("3.9.2")
    assert "too old for the stack tensorflow" in environment.finding(software.check_python).text


def test_what_a_stack_lacks_on_purpose_is_no_warning(environment):
    environment.python("3.12.1")
    environment.install("torch==2.15.0")
    environment.module("torch", version="2.15.0", built=BUILT)
    environment.module("horovod")
    found = environment.findings(software.check_frameworks)
    assert {one.status for one in found} == {"ok"}
    mxnet = "mxnet is not part of the stack pytorch and needs Python 3.10 or 3.11: "
    tensorflow = "tensorflow is not part of the stack pytorch: make setup STACK=tensorflow"
    assert [one.text for one in found] == ["torch 2.15.0", f"{mxnet}make setup STACK=all BASE_PYTHON=3.11", tensorflow]
    environment.install("tensorflow==2.21.0")
    environment.marker("pytorch")
    error = "ImportError: Extension horovod.tensorflow has not been built"
    environment.module("tensorflow", version="2.21.0", horovod_error=error)
    horovod_s = [one.text for one in environment.findings(horovod.check_horovod) if one.status == "ok"]
    assert "Horovod was not built for tensorflow, which is not part of the stack pytorch" in horovod_s


def test_missing_part_of_a_stack(environment):
    environment.marker("tensorflow")
    (failed,) = environment.findings(software.check_frameworks)
    assert (failed.status, failed.remedy) == ("fail", "make setup STACK=tensorflow")
    environment.module("torch", version="2.15.0")
    missing = environment.findings(software.check_frameworks)[-1]
    assert missing == ("warn", "tensorflow is not installed, but part of the stack", "make setup STACK=tensorflow")


def test_repair_sets_up_again_although_set_up_would_find_nothing_to_do(environment, tmp_path):
    environment.marker("pytorch")
    for name in (".hvdtrain-setup", ".hvdtrain-horovod"):
        environment.write(name)
    stamps = f"{tmp_path}/.hvdtrain-setup {tmp_path}/.hvdtrain-horovod"
    command = f"rm -f {stamps} && make setup STACK=pytorch VENV={tmp_path}"
    assert environment.finding(software.check_numpy) == ("fail", "NumPy is not installed", command)


def test_numpy_too_new_for_mxnet_on_a_python_without_an_older_one(environment):
    environment.install("numpy==2.5.5", "mxnet==1.9.1")
    environment.module("mxnet")
    assert environment.finding(software.check_numpy).remedy == "pip install 'numpy<1.24'"
    environment.python("3.12.1")
    too_new = environment.finding(software.check_numpy)
    assert (too_new.status, too_new.remedy) == ("fail", "make setup STACK=all BASE_PYTHON=3.11")


def test_numpy_that_torch_cannot_use(environment):
    environment.install("torch==2.2.0", "numpy==2.5.5")
    environment.module("torch", version="2.2.0", numpy_error="RuntimeError: Numpy is not available")
    found = environment.findings(software.check_frameworks)[0]
    assert found.text == "torch 2.2.0 cannot use NumPy 2.5.5 (RuntimeError: Numpy is not available)"
    assert (found.status, found.remedy) == ("fail", "make setup STACK=pytorch")


def test_versions_against_the_pins_of_the_stack(environment, tmp_path, monkeypatch):
    monkeypatch.setattr(software, "PINS", tmp_path / "stacks")
    (tmp_path / "stacks" / "pytorch").mkdir(parents=True)
    (tmp_path / "stacks" / "pytorch" / "constraints.txt").write_text("numpy==2.5.5\ntorch==2.15.0\nrich==15.0\n")
    environment.install("torch==2.15.0+cpu", "numpy==2.5.5")
    text = "all 2 packages have the versions of the stack pytorch"
    assert environment.finding(software.check_versions) == ("ok", text, "")
    environment.install("rich==14.0")
    differ = environment.finding(software.check_versions)
    assert differ.text == "versions differ from those of the stack pytorch: rich 14.0 (pinned 15.0)"
    assert differ.remedy == "make setup STACK=pytorch"


def test_the_machine_s_own_torch(environment, tmp_path, monkeypatch):
    """With USE_SYSTEM_TORCH=1 set-up links it in a folder of this name, and writes the pins of the other packages."""
    monkeypatch.setattr(software, "PINS", tmp_path / "stacks")
    (tmp_path / "stacks" / "pytorch").mkdir(parents=True)
    (tmp_path / "stacks" / "pytorch" / "constraints.txt").write_text("numpy==2.5.5\ntorch==2.15.0\n")
    environment.install("torch==2.9.0a0+nv", "numpy==2.5.5")
    assert environment.finding(software.check_versions).status == "warn"
    folder = tmp_path / "site" / "hvdtrain-system-torch"
    folder.mkdir()
    metadata = next((tmp_path / "site").glob("torch-*"))
    metadata.rename(folder / metadata.name)
    sys.path.insert(0, str(folder))
    environment.write(".hvdtrain-constraints", "numpy==2.5.5\n")
    assert environment.finding(software.check_versions).text == "all 1 packages have the versions of the stack pytorch"
    assert "PyTorch 2.9.0a0+nv of the machine, NumPy" in environment.finding(stack.check_stack).text


def test_packages_too_new_or_too_old_for_a_framework(environment):
    assert packaging.requirements and packaging.specifiers and packaging.version  # loaded: they are not in this one
    needs = ("numpy>=1.26.0", "protobuf<8.0.0,>=6.31.1", "wrapt>=1.11", "h5py<3.15; extra == 'x'")
    environment.install("tensorflow-cpu==2.21.0", requires=needs)
    environment.install("numpy==1.23.5", "protobuf==8.1", "wrapt==2.0", "h5py==9")
    found = environment.findings(requirements.check_requirements)
    assert {(one.status, one.remedy) for one in found} == {("warn", "make setup STACK=tensorflow")}
    assert [one.text for one in found] == [
        "numpy 1.23.5 is too old: tensorflow-cpu 2.21.0 requires numpy>=1.26.0",
        "protobuf 8.1 is too new: tensorflow-cpu 2.21.0 requires protobuf<8.0.0,>=6.31.1",
    ]


def test_tensorboard_without_pkg_resources(environment, tmp_path):
    environment.install("tensorboard==2.15.2", "setuptools==84.2.1")
    environment.module("tensorboard")
    assert environment.findings(requirements.check_requirements) == []
    environment.write("site/tensorboard/default.py", "import pkg_resources\n")
    found = environment.finding(requirements.check_requirements)
    text = "setuptools 84.2.1 is too new for TensorBoard 2.15.2, which imports pkg_resources"
    assert found == ("warn", text, "pip install 'setuptools<81'")


def test_keras_2_of_tensorflow(environment, monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    assert environment.findings(requirements.check_keras) == []
    environment.install("tensorflow-cpu==2.21.0", "keras==3.15.1")
    missing = environment.finding(requirements.check_keras)
    assert (missing.status, missing.remedy) == ("fail", "pip install --no-deps 'tf-keras==2.21.*'")
    assert "TensorFlow 2.21.0 has Keras 3.15.1" in missing.text
    environment.install("tf-keras==2.21.3")
    assert environment.finding(requirements.check_keras).status == "ok"
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    text = "TF_USE_LEGACY_KERAS=0 selects Keras 3.15.1, and Horovod needs Keras 2"
    assert environment.finding(requirements.check_keras) == ("fail", text, "unset TF_USE_LEGACY_KERAS")


@pytest.mark.parametrize("version, age", [("2.20.1", "old"), ("2.22.0", "new")])
def test_keras_2_of_another_tensorflow(environment, version, age):
    environment.install("tensorflow==2.21.0", "keras==3.15.1", f"tf-keras=={version}")
    text = f"tf-keras {version} is too {age} for TensorFlow 2.21.0, which needs tf-keras 2.21"
    remedy = "pip install --no-deps 'tf-keras==2.21.*'"
    assert environment.finding(requirements.check_keras) == ("fail", text, remedy)


def test_tensorflow_with_keras_2_in_itself(environment):
    environment.install("tensorflow-cpu==2.15.1", "keras==2.15.0")
    assert environment.finding(requirements.check_keras).text == "TensorFlow 2.15.1 has Keras 2.15.0"


def record(**values: object) -> str:
    return json.dumps({"frameworks": {"torch": "2.15.0"}, "torch_cuda": "13.2", "mpi": "openmpi 4.1.8", **values})


@pytest.mark.parametrize(
    "installed, cuda, texts",
    [
        ("2.16.1", "13.2", "it was built with torch 2.15.0, but 2.16.1 is installed"),
        ("2.15.0", "12.6", "it was built for a torch for CUDA 13.2, but the installed one is for CUDA 12.6"),
        ("2.15.0", None, "it was built for a torch for CUDA 13.2, but the installed one is for CPUs"),
    ],
)
def test_horovod_for_another_torch(environment, installed, cuda, texts):
    """A prebuilt wheel, of which only the record in its metadata is known."""
    environment.install(f"torch=={installed}", "numpy==2.5.5")
    environment.install("horovod==0.28.1+hvdtrain.p1.torch2.15.cuda13.2.nccl.openmpi4", hvdtrain=record())
    environment.module("horovod")
    environment.module("torch", version=installed, cuda=cuda, horovod_error="ImportError: undefined symbol: _ZN3c10")
    found = environment.findings(horovod.check_horovod)[0]
    assert found.status == "fail" and found.text.endswith(texts)
    assert found.remedy == "make setup STACK=pytorch, which rebuilds Horovod for the installed versions"


@pytest.mark.parametrize(
    "installed, age", [("2.16.0", "newer than"), ("2.14.1", "older than"), ("2.15.2", ""), ("2.15.0+cu132", "")]
)
def test_horovod_that_loads_with_another_torch(environment, installed, age):
    environment.install(f"torch=={installed}")
    environment.install("horovod==0.28.1", hvdtrain=record())
    environment.module("horovod")
    environment.module("torch", version=installed, built=BUILT)
    found = environment.findings(horovod.check_horovod)[0]
    assert found.status == ("warn" if age else "ok")
    assert (f"is {age} the 2.15.0 that Horovod was built with" in found.text) == bool(age)


@pytest.mark.parametrize("mpirun, age", [("5.0.6", "new"), ("3.1.0", "old"), ("4.1.4", "")])
def test_mpi_against_that_of_horovod_s_build(environment, tmp_path, mpirun, age):
    environment.install("horovod==0.28.1", hvdtrain=record())
    found = list(mpi.built_for_another_mpi(("Open MPI", mpirun)))
    text = f"mpirun is Open MPI {mpirun}, too {age} for Horovod, which was built with Open MPI 4.1.8"
    assert [one.text for one in found] == ([text] if age else [])
    assert not list(mpi.built_for_another_mpi(("MPICH", "5.0.0")))


def test_error_for_a_framework_that_the_stack_does_not_have(environment, monkeypatch):
    environment.python("3.12.1")
    environment.marker("pytorch")
    monkeypatch.setitem(sys.modules, "mxnet", None)
    reason = r"mxnet cannot be imported \(.*\): it is not part of the stack pytorch and needs Python 3.10 or 3.11"
    with pytest.raises(UserError, match=f"{reason}; run: make setup STACK=all BASE_PYTHON=3.11"):
        require(["mxnet"], "mxnet")
