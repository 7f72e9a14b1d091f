"""A framework that a program imported before hvdtrain is held by its functions, or the error says what to do."""

import subprocess
import sys

import pytest
from support.jobs import ROOT

from hvdtrain.frameworks import arithmetic

PROGRAM = """
{before}
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks import arithmetic as of_frameworks
from hvdtrain.system import arithmetic

if {isa!r} == "avx2" and "avx512vl" not in arithmetic.processor().flags:
    print("no AVX-512")
    raise SystemExit
config = Config(framework={framework!r}, threads={threads}, isa={isa!r}, shards={shards})
for _ in range(2):
    arithmetic.hold(config.threads, config.isa, config.shards)
    try:
        of_frameworks.settle(config, RuntimeOptions(device="cpu"))
    except UserError as error:
        print("refused", error.option, bool(error.remedy))
    else:
        print("threads", of_frameworks.threads(config.framework))
{after}
"""
TORCH = "import torch"
MXNET = "import mxnet"
TENSORFLOW = "import tensorflow as tf"


def lines(framework, before="", after="", threads=0, isa="auto", shards=0, **environment):
    """What the program prints; skips the test on a processor without AVX-512 if --isa limits it."""
    code = PROGRAM.format(**locals())
    variables = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin", "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    if "no AVX-512" in done.stdout:
        pytest.skip("needs a processor with AVX-512")
    return done.stdout.splitlines()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("before", ["", TORCH, f"{TORCH}; torch.ones(3) @ torch.ones(3)"], ids=["", "imported", "used"])
def test_threads_of_pytorch(before):
    assert lines("torch", before, threads=2) == ["threads 2"] * 2


@pytest.mark.needs("torch")
def test_instruction_set_of_pytorch():
    after = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert lines("torch", TORCH, after, isa="avx2")[2:] == ["AVX2"]
    assert lines("torch", f"{TORCH}; torch.nn.Linear(3, 3)", isa="avx2") == ["refused isa True"] * 2


@pytest.mark.needs("torch")
def test_pytorch_is_deterministic_where_threads_share_an_operation():
    after = "import torch; print(torch.are_deterministic_algorithms_enabled())"
    assert lines("torch", "", after, threads=2, shards=4)[2:] == ["True"]
    assert lines("torch", "", after, shards=4)[2:] == ["False"]


@pytest.mark.needs("torch")
def test_matrix_products_of_pytorch_do_not_depend_on_addresses():
    """As they do without MKL's branch for reproducible results."""
    after = """
import torch
def at(tensor, offset):
    memory = torch.empty(tensor.numel() + 64)
    first = (-memory.data_ptr() // 4) % 16 + offset
    return memory[first : first + tensor.numel()].view(tensor.shape).copy_(tensor)
images, weights = torch.rand(64, 84), torch.rand(10, 84)
products = [at(images, i) @ at(weights, j).T for i, j in ((0, 0), (4, 0), (8, 4), (1, 1), (3, 12))]
print(all(torch.equal(product, products[0]) for product in products))
"""
    assert lines("torch", TORCH, after, shards=4)[2:] == ["True"]


@pytest.mark.needs("mxnet")
def test_mxnet_reads_threads_and_kernels_when_it_is_imported():
    assert lines("mxnet", "", threads=2, isa="avx2") == ["threads 2"] * 2
    assert lines("mxnet", MXNET, threads=2, OMP_NUM_THREADS="3") == ["refused threads True"] * 2
    assert lines("mxnet", MXNET, threads=2, OMP_NUM_THREADS="2") == ["threads 2"] * 2
    assert lines("mxnet", MXNET, isa="avx2", OMP_NUM_THREADS="2") == ["refused isa True"] * 2
    assert lines("mxnet", MXNET, isa="avx2", OMP_NUM_THREADS="2", OPENBLAS_CORETYPE="Haswell") == ["threads 2"] * 2


@pytest.mark.matrix
@pytest.mark.needs("tensorflow")
def test_threads_and_instruction_set_of_tensorflow():
    used = f"{TENSORFLOW}; tf.ones(3) + 1"
    assert lines("tensorflow", TENSORFLOW, threads=2) == ["threads 2"] * 2
    assert lines("tensorflow", used, threads=2) == ["refused threads True"] * 2
    assert lines("tensorflow", used, threads=2, TF_NUM_INTRAOP_THREADS="2") == ["threads 2"] * 2
    assert lines("tensorflow", TENSORFLOW, isa="avx2", TF_NUM_INTRAOP_THREADS="2") == ["refused isa True"] * 2


@pytest.mark.parametrize(
    ("precision", "seconds", "is_slow"),
    [
        ("bf16", {"fp32": 2e-3, "bf16": 3.5e-3}, True),  # Intel with AVX512_BF16, without AMX
        ("fp16", {"fp32": 2e-3, "fp16": 1.0}, True),
        ("bf16", {"fp32": 3.1e-3, "bf16": 1.2e-3}, False),
        ("bf16", {"fp32": 2e-3, "bf16": 2.1e-3}, False),  # chance
        ("bf16", {"fp32": None, "bf16": None}, False),
        ("fp32", {}, False),
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
