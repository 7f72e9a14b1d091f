"""GPUs, with an nvidia-smi and frameworks made up for the test."""

from __future__ import annotations

from support.doctor import doctor, nvidia_smi
from support.environment import script
from support.made_up_packages import BUILT

from hvdtrain.doctor.checks.gpu import check_gpu, check_gpu_per_rank, runs_on

FAKES = {
    "torch": "from types import SimpleNamespace as N\n__version__ = '2.15.0'\nversion = N(cuda='13.2')\n"
    "cuda = N(is_available=lambda: True, device_count=lambda: 1, nccl=N(version=lambda: (2, 27, 3)),"
    " get_arch_list=lambda: ['sm_80', 'sm_90'])\n",
    "mxnet": "from types import SimpleNamespace as N\n__version__ = '1.9.1'\ncontext = N(num_gpus=lambda: 1)\n"
    "runtime = N(Features=lambda: N(is_enabled=lambda name: True))\n",
    "tensorflow": "raise ImportError('not used here')",
    "horovod": "",
    "horovod/torch": "init = print\ngloo_built = mpi_built = lambda: 1\nnccl_built = lambda: 21003\n",
}


def test_what_frameworks_and_nvidia_smi_say_is_read(tmp_path):
    """A GPU that is newer than both frameworks, and a Horovod with another NCCL than PyTorch's."""
    for name, content in FAKES.items():
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(content)
    smi = nvidia_smi(tmp_path, "NVIDIA B200", driver="595.10", cuda="13.2", capability="10.0")
    result = doctor(tmp_path, "--only", "gpu", PATH=smi, PYTHONPATH=str(tmp_path / "fake"))
    result.has("gpu", "ok", "1 x NVIDIA B200 (sm_100), driver 595.10, CUDA up to 13.2")
    texts = ("NVIDIA B200 (sm_100) is too new for torch 2.15.0, built for sm_80, sm_90",)
    result.has("gpu", "fail", *texts, remedy="make setup STACK=pytorch")
    never = "MXNet 1.9.1 was never built for NVIDIA B200 (sm_100)"
    result.has("gpu", "warn", never, remedy="make setup STACK=pytorch")
    result.has("gpu", "warn", "built with NCCL 2.10, but torch comes with 2.27", remedy="HOROVOD_NCCL_HOME")


def problems(environment):
    """Status, text and remedy of each finding but the first, which is about the machine."""
    return environment.findings(check_gpu)[1:]


def test_cuda_newer_than_the_driver(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    environment.module("horovod")
    environment.module("torch", version="2.13.0", cuda="13.0", gpus=0, built=BUILT)
    environment.module("mxnet", version="1.9.1", cuda=None)
    assert environment.findings(check_gpu)[0].text == "1 x Tesla T4, driver 470.82.01, CUDA up to 11.4"
    visible, torch, mxnet, nccl = problems(environment)
    assert visible.text.startswith("CUDA_VISIBLE_DEVICES=0,3 names GPU 3") and visible.remedy.startswith("unset")
    assert torch.text == "torch is built for CUDA 13.0, but driver 470.82.01 supports CUDA up to 11.4"
    assert mxnet.text.startswith("mxnet 1.9.1 is built for CPUs") and "mxnet-cu112" in mxnet.remedy
    assert "built without NCCL" in nccl.text and "HOROVOD_GPU_OPERATIONS=NCCL" in nccl.remedy
    assert [one.status for one in (visible, torch, mxnet, nccl)] == ["fail", "fail", "warn", "warn"]


def test_gpu_older_than_torch(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path, "Tesla V100", "595.10", "13.2", "7.0"))
    code = ["sm_80", "sm_90", "compute_90"]
    nccl = {"built": {**BUILT, "nccl": 22703}, "nccl": [2, 27, 3]}
    environment.module("torch", version="2.15.0", cuda="13.2", gpus=1, architectures=code, **nccl)
    environment.module("mxnet", version="1.9.1", cuda="", gpus=1)
    sees, old, mxnet = problems(environment)
    assert [sees.text, mxnet.text] == ["torch sees 1 GPU(s)", "mxnet sees 1 GPU(s)"]
    assert (old.status, "an older torch" in old.remedy) == ("fail", True)
    assert old.text.startswith("Tesla V100 (sm_70) is too old for torch 2.15.0")
    assert environment.finding(check_gpu_per_rank) == ("ok", "1 GPU(s) for 1 rank(s)", "")
    environment.context.ranks = 2
    found = environment.finding(check_gpu_per_rank)
    assert found.status == "fail" and found.text.startswith("2 ranks on this host, but 1 visible GPU")
    assert found.remedy.startswith("start at most 1 rank")


def test_nvidia_smi_cannot_reach_the_driver(environment, tmp_path, monkeypatch):
    smi = script(tmp_path / "nvidia-smi", 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18')
    monkeypatch.setenv("PATH", str(smi.parent))
    found = environment.finding(check_gpu)
    assert found.status == "fail" and "cannot reach the driver" in found.text and "version mismatch" in found.text
    assert "reboot" in found.remedy and not environment.findings(check_gpu_per_rank)


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
