"""GPUs, with an nvidia-smi and frameworks made up for the test."""

from __future__ import annotations

from support.doctor import doctor, nvidia_smi, path_with, script
from support.stack import INSTALLED

from hvdtrain.doctor.checks.gpu import runs_on


def test_cuda_newer_than_the_driver(tmp_path):
    (tmp_path / "fake" / "torch").mkdir(parents=True)
    (tmp_path / "fake" / "torch" / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n__version__ = '2.13.0'\nversion = N(cuda='13.0')\n"
        "cuda = N(is_available=lambda: False, device_count=lambda: 0)\n"
    )
    result = doctor(
        tmp_path,
        "--only",
        "gpu",
        PATH=nvidia_smi(tmp_path),
        PYTHONPATH=str(tmp_path / "fake"),
        CUDA_VISIBLE_DEVICES="0,3",
    )
    result.has("gpu", "ok", "1 x Tesla T4, driver 470.82.01, CUDA up to 11.4")
    result.has(
        "gpu", "fail", "torch is built for CUDA 13.0", "driver 470.82.01 supports CUDA up to 11.4", remedy="update"
    )
    result.has("gpu", "fail", "CUDA_VISIBLE_DEVICES=0,3 names GPU 3", remedy="unset")
    if "mxnet" in INSTALLED:
        result.has("gpu", "warn", "mxnet 1.9.1 is built for CPUs", remedy="mxnet-cu112")
    if len(INSTALLED) > 1:  # Horovod cannot be imported for the torch of this test
        result.has("gpu", "warn", "built without NCCL", remedy="HOROVOD_GPU_OPERATIONS=NCCL")


def test_horovod_and_torch_with_different_nccl(tmp_path):
    """Stand-ins for the frameworks and Horovod: Horovod has NCCL 2.10, torch has 2.27."""
    fake = {
        "torch": "from types import SimpleNamespace as N\n__version__ = '2.13.0'\nversion = N(cuda='11.8')\n"
        "cuda = N(is_available=lambda: True, device_count=lambda: 1, nccl=N(version=lambda: (2, 27, 3)))\n",
        "mxnet": "raise ImportError('not used here')",
        "tensorflow": "raise ImportError('not used here')",
        "horovod": "",
        "horovod/torch": "init = print\ngloo_built = mpi_built = lambda: 1\nnccl_built = lambda: 21003\n",
    }
    for name, content in fake.items():
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(content)
    result = doctor(tmp_path, "--only", "gpu", PATH=nvidia_smi(tmp_path), PYTHONPATH=str(tmp_path / "fake"))
    result.has("gpu", "ok", "torch sees 1 GPU(s)")
    result.has("gpu", "warn", "built with NCCL 2.10, but torch comes with 2.27", remedy="HOROVOD_NCCL_HOME")


def test_nvidia_smi_cannot_reach_the_driver(tmp_path):
    script(
        tmp_path / "bin" / "nvidia-smi", 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18'
    )
    result = doctor(tmp_path, "--only", "gpu", "gpu-per-rank", PATH=path_with(tmp_path / "bin"))
    result.has("gpu", "fail", "cannot reach the driver", "version mismatch", remedy="reboot")


def test_one_rank_and_one_gpu(tmp_path):
    result = doctor(tmp_path, "--only", "gpu-per-rank", "--ranks", "1", PATH=nvidia_smi(tmp_path))
    result.has("gpu-per-rank", "ok", "1 GPU(s) for 1 rank(s)")


def gpu_of(folder, name: str, capability: str) -> str:
    """PATH with an nvidia-smi that reports one GPU of this compute capability and a driver for CUDA 13.2."""
    script(
        folder / "bin" / "nvidia-smi",
        f'case "$*" in *compute_cap*) echo "{capability}";; *--query-gpu*) echo "0, {name}, 595.10";;',
        '*) echo "| NVIDIA-SMI 595.10    Driver Version: 595.10    CUDA Version: 13.2     |";; esac',
    )
    return path_with(folder / "bin")


def fake_frameworks(folder, architectures: tuple[str, ...]) -> str:
    """PYTHONPATH with a torch that has code for these architectures, and an MXNet built for CUDA."""
    fake = {
        "torch": "from types import SimpleNamespace as N\n__version__ = '2.15.0'\nversion = N(cuda='13.2')\n"
        "cuda = N(is_available=lambda: True, device_count=lambda: 1, nccl=N(version=lambda: (2, 30, 7)),"
        f" get_arch_list=lambda: {list(architectures)})\n",
        "mxnet": "from types import SimpleNamespace as N\n__version__ = '1.9.1'\ncontext = N(num_gpus=lambda: 1)\n"
        "runtime = N(Features=lambda: N(is_enabled=lambda name: True))\n",
        "tensorflow": "raise ImportError('not used here')",
        "horovod": "",
    }
    for name, content in fake.items():
        (folder / "fake" / name).mkdir(parents=True)
        (folder / "fake" / name / "__init__.py").write_text(content)
    return str(folder / "fake")


def test_gpu_newer_than_torch_and_mxnet(tmp_path):
    result = doctor(
        tmp_path,
        *("--only", "gpu"),
        PATH=gpu_of(tmp_path, "NVIDIA B200", "10.0"),
        PYTHONPATH=fake_frameworks(tmp_path, ("sm_80", "sm_90")),
    )
    result.has("gpu", "ok", "1 x NVIDIA B200 (sm_100), driver 595.10, CUDA up to 13.2")
    texts = ("NVIDIA B200 (sm_100) is too new for torch 2.15.0, built for sm_80, sm_90",)
    result.has("gpu", "fail", *texts, remedy="make setup STACK=pytorch")
    never = "MXNet 1.9.1 was never built for NVIDIA B200 (sm_100)"
    result.has("gpu", "warn", never, remedy="make setup STACK=pytorch")


def test_gpu_older_than_torch(tmp_path):
    result = doctor(
        tmp_path,
        *("--only", "gpu"),
        PATH=gpu_of(tmp_path, "Tesla V100", "7.0"),
        PYTHONPATH=fake_frameworks(tmp_path, ("sm_80", "sm_90", "compute_90")),
    )
    result.has("gpu", "fail", "Tesla V100 (sm_70) is too old for torch 2.15.0", remedy="an older torch")
    result.has("gpu", "ok", "mxnet sees 1 GPU(s)")


def test_code_of_a_framework_on_gpus():
    for code, capability, runs in (
        (["sm_75", "sm_80"], 86, True),
        (["sm_75", "sm_80"], 90, False),
        (["sm_90"], 80, False),
        (["sm_90a"], 90, True),
        (["sm_90a", "sm_100a"], 103, False),
        (["sm_100"], 120, False),
        (["sm_80", "compute_90"], 120, True),
        (["sm_80", "compute_90"], 75, False),
    ):
        assert runs_on(code, capability) == runs, (code, capability)
