"""A framework that a program imported before hvdtrain is held by its functions, or the error says what to do.

Libraries read variables once in a process: each case has one of its own, forked from one that has only imported them.
"""

import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.doctor import unshared
from support.environment import importing
from support.errors import refused
from support.jobs import ROOT, succeed

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks import arithmetic
from hvdtrain.frameworks.preparation import TF_CONCURRENT_OPERATIONS, set_environment
from hvdtrain.system import arithmetic as of_system
from hvdtrain.system.arithmetic import openmp_threads, threads_by_variables
from hvdtrain.system.resources import within_quota

PROGRAM = """
import json, os, sys
framework, is_imported, *cases = json.loads(sys.argv[1])
if is_imported:
    __import__(framework)
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks import arithmetic as of_frameworks
from hvdtrain.frameworks.preparation import set_environment
from hvdtrain.system import arithmetic

if "avx512vl" not in arithmetic.processor().flags:
    cases = [case for case in cases if "isa" not in case["options"]]
for case in cases:
    if os.fork():
        if os.wait()[1]:
            raise SystemExit(1)
        continue
    os.environ.update(case.get("environment", {}))
    exec(case.get("before", ""))
    config = Config(framework=framework, **case["options"])
    for _ in range(2):
        arithmetic.hold(config.threads, config.isa, config.shards)
        set_environment()
        try:
            of_frameworks.settle(config, RuntimeOptions(device="cpu"))
        except UserError as error:
            found = f"refused {error.option} {bool(error.remedy)}"
        else:
            too_many = bool(of_frameworks.too_many_threads(framework))
            found = f"threads {of_frameworks.threads(framework)}{' too many' * too_many}"
        assert found == case["expected"], (case, found)
    exec(case.get("after", ""))
    os._exit(0)
"""


def check(framework, is_imported, *cases, **environment):
    """Run the cases: options, what is printed, and code before and after; those with isa where there is AVX-512."""
    variables = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin", "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    given = json.dumps([framework, is_imported, *cases])
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, given]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def case(expected, environment=(), **options):
    """Of these options, but `before` and `after`: code."""
    code = {name: options.pop(name, "") for name in ("before", "after")}
    return {"expected": expected, "environment": dict(environment), "options": options, **code}


# As they do not without MKL's branch for reproducible results.
PRODUCTS = """
import torch
assert not torch.are_deterministic_algorithms_enabled()  # with one thread, all operations are
def at(tensor, offset):
    memory = torch.empty(tensor.numel() + 64)
    first = (-memory.data_ptr() // 4) % 16 + offset
    return memory[first : first + tensor.numel()].view(tensor.shape).copy_(tensor)
images, weights = torch.rand(64, 84), torch.rand(10, 84)
products = [at(images, i) @ at(weights, j).T for i, j in ((0, 0), (4, 0), (8, 4), (1, 1), (3, 12))]
assert all(torch.equal(product, products[0]) for product in products), "they depend on addresses"
"""


A_PRODUCT = "import torch; torch.ones(3, 3) @ torch.ones(3, 3)"
CAPABILITY = "import torch; assert torch.backends.cpu.get_cpu_capability() == 'AVX2'"


@pytest.mark.needs("torch")
def test_pytorch_is_held_by_its_functions():
    check(
        *("torch", True),
        case("threads 2", threads=2),
        case("threads 2", before="import torch; torch.ones(3) @ torch.ones(3)", threads=2),
        case("threads 1", after=PRODUCTS, shards=4),
        case("threads 1", after=CAPABILITY, isa="avx2"),
        case("refused isa True", before="import torch; torch.nn.Linear(3, 3)", isa="avx2"),
        case("refused shards True", before=A_PRODUCT, shards=4),
        case("threads 1", before=A_PRODUCT, shards=4, environment={"MKL_CBWR": "AUTO"}),
        OMP_NUM_THREADS="1",
    )
    deterministic = "import torch; assert torch.are_deterministic_algorithms_enabled()"
    check("torch", False, case("threads 2", after=deterministic, threads=2, shards=4))


CORES = len(os.sched_getaffinity(0))
SHARE = max(within_quota(CORES) // 2, 1)


def shared(expected=f"threads {SHARE}", ranks=2, environment=(), **rest):
    """A case of one of several ranks of a host."""
    names = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE")
    values = dict(zip(names, ("0", "0", str(ranks), str(ranks)), strict=True))
    return case(expected, values | dict(environment), **rest)


@pytest.mark.needs("torch")
def test_pytorch_that_was_imported_first_computes_on_its_share_of_the_cores():
    own = f"import torch; torch.set_num_threads({CORES + 5})"
    check(
        *("torch", True),
        shared(),
        shared("threads 1", ranks=CORES),
        shared("threads 1", ranks=8 * CORES, before=A_PRODUCT),
        shared(f"threads {CORES + 5} too many", before=own),
        shared(f"threads {CORES + 5}", threads=CORES + 5),
        shared(after=BLAS),
    )


BLAS = f"""
import ctypes, numpy
libraries = [line.split()[-1] for line in open("/proc/self/maps") if "/numpy" in line and "openblas" in line]
library = ctypes.CDLL(libraries[0])
name = next(name for name in of_frameworks.OPENBLAS_THREADS if hasattr(library, name)).replace("set", "get")
assert getattr(library, name)() == {SHARE}
"""


def test_where_the_system_does_not_tell_which_libraries_are_loaded(tmp_path):
    """A sandbox may have no /proc."""
    code = "import numpy; from hvdtrain.frameworks import arithmetic; arithmetic._settle_numpy(1); print('settled')"
    without = unshared("-m", "mount -t tmpfs none /proc")
    assert succeed([*without, sys.executable, "-c", code], tmp_path, **importing(ROOT)) == "settled\n"


@pytest.mark.needs("mxnet")
def test_mxnet_that_was_imported_first_computes_on_its_share_of_the_cores():
    check("mxnet", True, shared(), shared("threads 1", ranks=CORES))
    check("mxnet", False, shared(), shared("threads 3", environment={"OMP_NUM_THREADS": "3"}))


@pytest.mark.needs("tensorflow")
def test_tensorflow_that_was_imported_first_computes_on_its_share_of_the_cores():
    used = "import tensorflow as tf; tf.ones(3) + 1"
    check(
        *("tensorflow", True),
        shared(after=used),
        shared("threads 3", environment={"TF_NUM_INTRAOP_THREADS": "3"}),
        shared(f"threads {CORES}{' too many' * (SHARE < CORES)}", before=used),
    )


@pytest.mark.needs("mxnet")
def test_mxnet_reads_threads_and_kernels_when_it_is_imported():
    check("mxnet", False, case("threads 2", threads=2, isa="avx2"))
    check(
        *("mxnet", True),
        case("refused threads True", threads=3),
        case("threads 2", threads=2),
        case("refused isa True", isa="avx2"),
        case("threads 2", isa="avx2", environment={"OPENBLAS_CORETYPE": "Haswell"}),
        OMP_NUM_THREADS="2",
    )


@pytest.mark.matrix
@pytest.mark.needs("tensorflow")
def test_threads_and_instruction_set_of_tensorflow():
    used = "import tensorflow as tf; tf.ones(3) + 1"
    check(
        *("tensorflow", True),
        case("threads 2", threads=2),
        case("refused threads True", before=used, threads=2),
        case("threads 2", before=used, threads=2, environment={"TF_NUM_INTRAOP_THREADS": "2"}),
        case("refused isa True", isa="avx2", environment={"TF_NUM_INTRAOP_THREADS": "2"}),
    )


@pytest.mark.parametrize(
    ("precision", "seconds", "is_slow"),
    [
        ("bf16", {"fp32": 2e-3, "bf16": 3.5e-3}, True),  # Intel with AVX512_BF16, without AMX
        ("fp16", {"fp32": 2e-3, "fp16": 1.0}, True),
        ("bf16", {"fp32": 3.1e-3, "bf16": 1.2e-3}, False),
        ("bf16", {"fp32": None, "bf16": None}, False),
    ],
)
def test_a_precision_is_slow_by_its_products(precision, seconds, is_slow, monkeypatch):
    monkeypatch.setattr(arithmetic, "product_s", lambda framework, name: seconds[name])
    text = arithmetic.slow_precision("torch", precision)
    assert bool(text) == is_slow
    assert not text or f"--precision {precision}" in text


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_product_is_measured(precision):
    pytest.importorskip("torch")
    assert 0 < arithmetic.product_s("torch", precision) < 10
    assert arithmetic.product_s("mxnet", precision) is None


def test_the_remedy_names_precisions_that_compute_here_and_that_the_options_allow(monkeypatch):
    problems = {"bf16": "IllError: no", "fp16": ""}
    monkeypatch.setattr(arithmetic, "precision_problem", lambda framework, precision: problems[precision])
    monkeypatch.setattr(arithmetic, "_module", lambda framework: SimpleNamespace(has_gpu=lambda: True))
    cpu = RuntimeOptions(device="cpu")

    def remedy(**options):
        config = Config(framework="torch", strategy="single", precision="bf16", **options)
        arithmetic.check_precision(config, RuntimeOptions())  # a GPU computes
        return refused(lambda: arithmetic.check_precision(config, cpu), "(IllError: no)", option="precision").remedy

    assert remedy() == "use --precision fp32 or fp16"
    assert remedy(shards=4) == "use --precision fp32"
    problems["fp16"] = "IllError: no"
    assert remedy() == "use --precision fp32"
    arithmetic.check_precision(Config(framework="torch", strategy="single"), cpu)


TRIED = """
import sys
from hvdtrain.frameworks import arithmetic
from hvdtrain.frameworks.preparation import require
framework, precision, before = sys.argv[1:]
require([framework], framework)
exec(before)
print(arithmetic.precision_problem(framework, precision))
"""
ALONE = TRIED.replace(
    "print(arithmetic.precision_problem(framework, precision))",
    "print(arithmetic._module(framework).compute(precision))",
)
BY_KERAS = "import numpy as np, tensorflow as tf; tf.keras.layers.Conv2D(8, 3)(np.ones((64, 28, 28, 1)))"
BY_TORCH = "import torch; torch.nn.Conv2d(1, 8, 3)(torch.ones(64, 1, 28, 28)).sum().backward()"


@pytest.mark.parametrize(
    ("framework", "precision", "before", "limits", "problem"),
    [
        ("torch", "bf16", BY_TORCH, "OMP_NUM_THREADS=2", ""),
        ("torch", "fp16", "", "", ""),
        ("mxnet", "fp16", "", "", "MXNetError: FP16 gemm on cpu not implemented!"),
        ("mxnet", "bf16", "", "DNNL_MAX_CPU_ISA=AVX2", "MXNetError: could not create a primitive descriptor iterator"),
        ("tensorflow", "fp16", "", "TF_ENABLE_ONEDNN_OPTS=0", ""),
        *(
            pytest.param("tensorflow", "bf16", before, "TF_ENABLE_ONEDNN_OPTS=1 ONEDNN_MAX_CPU_ISA=AVX2", None,
                         marks=[pytest.mark.matrix] if before else [])
            for before in ("", BY_KERAS)
        ),
    ],
)  # fmt: skip
def test_a_precision_is_tried(framework, precision, before, limits, problem):
    """Also where the framework has computed already, with threads of its own. None: as in a process that computes."""

    def run(code):
        program = ["env", *limits.split(), sys.executable, "-c", code, framework, precision, before]
        return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)

    done = run(TRIED)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()[-1]
    if problem is None:  # some processors compute it
        problem = "Error: " if run(ALONE).returncode else ""
    assert problem in found and bool(problem) == bool(found)


with_tf_keras = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None, reason="needs a TensorFlow whose Keras 2 is the package tf_keras"
)

KERAS = """
import os, sys
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import prepare, require

try:
    sys.modules |= {os.environ.get("MISSING", ""): None}
    require(["tensorflow"], "tensorflow")
    import tensorflow as tf
    print(tf.keras.Model.__module__.partition(".")[0])
except UserError as error:
    print(error)
"""


def output_of(code, *variables):
    """The lines that a Python process prints, whose Keras is chosen by these variables only."""
    command = ["env", "--unset=TF_USE_LEGACY_KERAS", "--unset=KERAS_BACKEND", *variables, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@with_tf_keras
@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("given", [(), ("TF_USE_LEGACY_KERAS=1",)])
def test_keras_is_the_one_that_the_user_chooses(given):
    assert output_of(KERAS, *given) == ["tf_keras" if given else "keras"]


@with_tf_keras
@pytest.mark.needs("tensorflow")
def test_a_keras_that_cannot_train_is_one_line_with_a_remedy():
    (missing,) = output_of(KERAS, "TF_USE_LEGACY_KERAS=1", "MISSING=tf_keras")
    assert "tf_keras, is not installed; unset it, or run: pip install --no-deps 'tf-keras==2." in missing
    (backend,) = output_of(KERAS, "KERAS_BACKEND=numpy")
    assert backend == "Keras computes by numpy, not by TensorFlow; set KERAS_BACKEND=tensorflow"
    before_a_task = KERAS.replace('require(["tensorflow"], "tensorflow")', 'prepare("tensorflow"); import keras')
    for given, why in {"torch": "by torch", "jax": "by jax", "none": "by none"}.items():
        (line,) = output_of(before_a_task, f"KERAS_BACKEND={given}", "MISSING=torch")
        assert line == f"Keras computes {why}, not by TensorFlow; set KERAS_BACKEND=tensorflow"
    assert output_of(before_a_task, "KERAS_BACKEND=") == ["keras"]


@pytest.mark.parametrize(
    ("given", "threads"),
    [("4,2", 4), (" 3 , 2 ", 3), ("2", 2), ("", 0), ("many", 0), ("2,", 0), ("2,x", 0), ("0,2", 0), ("٣", 0)],
)
def test_a_list_of_threads_counts_as_its_first_number(monkeypatch, given, threads):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": given})
    monkeypatch.setattr(of_system, "_defaults", {})
    monkeypatch.setattr(of_system, "_held", {})
    assert openmp_threads() == threads
    assert threads_by_variables() == (threads or len(os.sched_getaffinity(0)))
    set_environment()
    assert os.environ.get("TF_NUM_INTRAOP_THREADS", "") == os.environ.get(TF_CONCURRENT_OPERATIONS, "")
    assert os.environ.get("TF_NUM_INTRAOP_THREADS", "") == ("" if given and not threads else str(openmp_threads()))
    assert openmp_threads() or given, "none is a share of the cores"


IMPORT_MXNET = """
from hvdtrain.frameworks.mxnet.arithmetic import threads
from hvdtrain.frameworks.preparation import require
require(["mxnet"], "mxnet")
print(threads())
"""


@pytest.mark.needs("mxnet")
def test_mxnet_starts_with_a_list_of_threads():
    assert output_of(IMPORT_MXNET, "OMP_NUM_THREADS=3,2") == ["3"]  # MXNet itself aborts
    with pytest.raises(AssertionError, match="OMP_NUM_THREADS='many' is not a positive integer"):
        output_of(IMPORT_MXNET, "OMP_NUM_THREADS=many")
