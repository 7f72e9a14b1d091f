"""The variables that hold libraries at threads and instruction sets, and what is known of the processor."""

import os
import subprocess
import sys

import pytest
from support.environment import importing, of_jobs
from support.errors import refused
from support.jobs import ROOT

from hvdtrain.system import arithmetic
from hvdtrain.system.rank_info import RankInfo

AVX512 = " ".join(sorted(arithmetic.AVX512))
CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) CPU @ 2.00GHz
flags\t\t: fpu {flags}

processor\t: 1
vendor_id\t: other
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"


@pytest.fixture
def environment(monkeypatch):
    """An environment without the variables, on a host with AVX-512 and no framework imported; nothing is held."""
    of_libraries = {*arithmetic.DECIDING, *arithmetic.THREADS, arithmetic.SHARE}
    values = {name: value for name, value in os.environ.items() if name not in of_libraries}
    monkeypatch.setattr(os, "environ", values)
    monkeypatch.setattr(arithmetic, "_held", {})
    monkeypatch.setattr(arithmetic, "_defaults", {})
    monkeypatch.setattr(arithmetic, "_late", {module: set() for module in arithmetic.READERS})
    for module in arithmetic.READERS:
        monkeypatch.delitem(sys.modules, module, raising=False)
    on_host(monkeypatch, AVX512)
    monkeypatch.setattr(arithmetic, "_features_of_numpy", lambda: {"AVX2", "AVX512F", "AVX512_ICL", "AVX512_SPR"})
    return values


def on_host(monkeypatch, flags):
    found = arithmetic.Processor("Z80", "Zilog", frozenset(flags.split()))
    monkeypatch.setattr(arithmetic, "processor", lambda: found)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("avx2 fma", "avx2"),
        ("avx2 fma avx_vnni", "avx2_vnni"),
        (AVX512, "avx512"),
        (f"{AVX512} avx512_vnni avx512_bf16", "avx512_bf16"),
        (f"{AVX512} avx512_vnni avx512_bf16 amx_tile amx_bf16 avx_vnni", "amx"),
        (AVX512.replace("avx512vl", ""), "avx2"),
    ],
)
def test_best_instruction_set(tmp_path, flags, name):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(flags=flags))
    found = arithmetic.read_processor(tmp_path / "cpuinfo")
    assert (found.vendor, found.model) == ("GenuineIntel", "Intel(R) Xeon(R) CPU @ 2.00GHz")
    assert arithmetic.best_instruction_set(found.flags) == name


def test_other_processors(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_bytes(b"model name\t: x\xff\nflags\t: avx2 fma\n")  # a name that is no text
    assert arithmetic.read_processor(file).flags == {"avx2", "fma"}
    file.write_text(ARM)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    found = arithmetic.read_processor(file)
    assert found.vendor == "0x41"
    assert arithmetic.best_instruction_set(found.flags) == "aarch64 with SVE"
    assert arithmetic.best_instruction_set(arithmetic.read_processor(tmp_path / "none").flags) == "aarch64"


def test_threads_of_all_libraries_and_without_the_options_a_share_of_the_cores(environment, monkeypatch):
    before = dict(environment)
    monkeypatch.setattr("hvdtrain.system.resources.cores_of_rank", lambda: 5)
    arithmetic.hold(0, "auto", 0)
    assert environment == before | {"OMP_NUM_THREADS": "5", arithmetic.SHARE: "5"}
    assert arithmetic.default_threads() == 5 and arithmetic.given_environment() == before
    environment.update(OMP_NUM_THREADS="8", MKL_NUM_THREADS="3")
    arithmetic.hold(2, "auto", 0)
    assert {environment[name] for name in arithmetic.THREADS} == {"2"}
    assert arithmetic.threads_by_variables() == 2 and "MKL_CBWR" not in environment
    assert not arithmetic.default_threads() and arithmetic.given_environment() | {arithmetic.SHARE: "5"} == environment
    arithmetic.hold(0, "auto", 4)
    assert {environment[name] for name in arithmetic.THREADS} == {"1"}


@pytest.mark.parametrize(("of_launcher", "threads"), [(True, "5"), (False, "1")])
def test_torchrun_s_default_of_one_thread_is_not_the_user_s(environment, monkeypatch, of_launcher, threads):
    monkeypatch.setattr("hvdtrain.system.resources.cores_of_rank", lambda: 5)
    monkeypatch.setattr("hvdtrain.system.launching.has_default", lambda name: of_launcher)
    monkeypatch.setattr("hvdtrain.system.rank_info.detect", lambda: RankInfo("torchrun", 0, 2, 0))
    environment["OMP_NUM_THREADS"] = "1"
    arithmetic.hold(0, "auto", 0)
    assert environment["OMP_NUM_THREADS"] == threads
    arithmetic.hold(1, "auto", 0)
    arithmetic.hold(0, "auto", 0)
    assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("isa", sorted(arithmetic.AT_MOST))
def test_isa_replaces_what_the_user_set(environment, isa):
    environment.update(ONEDNN_MAX_CPU_ISA="SSE41", MKL_CBWR="COMPATIBLE")
    arithmetic.hold(0, isa, 4)
    features = {"avx2": "AVX512F,AVX512_ICL,AVX512_SPR", "avx512": "AVX512_ICL,AVX512_SPR"}
    for name, value in {**arithmetic.AT_MOST[isa], arithmetic.NUMPY_FEATURES: features[isa]}.items():
        assert environment[name] == value
    assert arithmetic.variables() == {}
    assert arithmetic.instruction_set(isa) == isa


def test_shards_keep_the_branch_of_mkl_that_the_user_set(environment):
    environment.update(MKL_CBWR="COMPATIBLE", ATEN_CPU_CAPABILITY="avx2")
    arithmetic.hold(0, "auto", 4)
    assert arithmetic.variables() == {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2"}
    assert environment["MXNET_ENFORCE_DETERMINISM"] == "1"


@pytest.mark.parametrize(("flags", "remedy"), [("avx2 fma", "use --isa avx2"), ("sse2", "leave it out")])
def test_a_host_without_the_instruction_set(environment, monkeypatch, flags, remedy):
    on_host(monkeypatch, flags)
    error = refused(lambda: arithmetic.hold(0, "avx512", 0), os.uname().nodename, option="isa")
    assert error.remedy.startswith(remedy)


NUMPY = """
import sys
if {is_imported}:
    import numpy
from hvdtrain.system import arithmetic
features = []
for _ in range(2):
    arithmetic.hold(0, {isa!r}, 0)
    features.append(arithmetic.at_most({isa!r})[arithmetic.NUMPY_FEATURES])
assert features[0] == features[1] and ("numpy" in sys.modules) == {is_imported}, features
import numpy
features += [name for name in arithmetic._usable_features() if name.startswith("AVX512_I")]
assert arithmetic.at_most({isa!r})[arithmetic.NUMPY_FEATURES] == features[0]
assert {is_imported} or not features[2:], features
"""


@pytest.mark.parametrize("given", [{}, {arithmetic.NUMPY_FEATURES: "AVX512F,AVX512_ICL,AVX512_SPR,X86_V4"}])
@pytest.mark.parametrize("is_imported", [False, True])
@pytest.mark.parametrize("isa", sorted(arithmetic.AT_MOST))
def test_numpy_disables_what_it_knows_and_the_processor_has(isa, is_imported, given):
    """It says so if not, when it is imported."""
    if not dict(arithmetic.INSTRUCTION_SETS)[isa] <= arithmetic.processor().flags:
        pytest.skip(f"needs a processor with {isa}")
    if given and is_imported:
        pytest.skip("NumPy itself would warn of the user's variable")
    code = NUMPY.format(isa=isa, is_imported=is_imported)
    environment = {**of_jobs(**importing(ROOT)), arithmetic.NUMPY_FEATURES: "", **given}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_an_imported_module_may_not_have_seen(environment, monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", arithmetic)
    environment["OPENBLAS_CORETYPE"] = "Haswell"
    arithmetic.hold(2, "avx2", 0)
    late = arithmetic.set_too_late("mxnet")
    assert {"OMP_NUM_THREADS", "DNNL_MAX_CPU_ISA"} <= late
    assert "OPENBLAS_CORETYPE" not in late
    assert not arithmetic.set_too_late("torch")
    arithmetic.hold(2, "avx2", 0)
    assert arithmetic.set_too_late("mxnet") == late


def test_model_of_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(arithmetic, "GPUS", tmp_path)
    assert arithmetic.device_model("cpu") == "cpu"
    assert arithmetic.device_model("cuda:0") == "gpu"
    for number in (0, 1):
        (tmp_path / f"0000:0{number}").mkdir()
        (tmp_path / f"0000:0{number}" / "information").write_text("Model: \t\t NVIDIA H100\nIRQ: 7\n")
    assert arithmetic.device_model("cuda:1") == "NVIDIA H100"
