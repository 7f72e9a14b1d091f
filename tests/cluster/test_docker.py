"""The image's Dockerfile, and the messages where it cannot be built.

It starts processes because make and shell scripts are tested.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from support.doctor import as_root, unshared
from support.environment import script
from support.jobs import BIN, ROOT

DOCKER = ROOT / "docker"
LOCK = ROOT / "setup" / "stacks" / "pytorch" / "requirements.lock"


def test_hadolint_and_shellcheck_report_nothing():
    for words in (["hadolint", "docker/Dockerfile"], ["shellcheck", *map(str, DOCKER.glob("*.sh"))]):
        done = subprocess.run([BIN / words[0], *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def make(target: str, path: str, **environment: str) -> tuple[int, str]:
    """Exit status and output of make, with the programs of one folder only on PATH."""
    done = subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=ROOT,
        env={"PATH": path, "HOME": os.environ["HOME"], **environment},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def tools(folder, *names: str) -> str:
    """A folder with these programs of the system, for PATH."""
    folder.mkdir()
    for name in ("make", "bash", "sh", "env", "dirname", "grep", *names):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return str(folder)


ENGINE = 'echo "engine $*"'
NONE = "no docker and no podman on PATH: install one (apt-get install podman)"
NO_IMAGE = "there is no image hvdtrain:all-cpu: make docker-build STACK=all DEVICE=cpu"
NO_CUDA = "STACK=tensorflow has no image for CUDA: give STACK=all, or DEVICE=cpu"


@pytest.mark.parametrize(
    ("target", "engine", "given", "said"),
    [
        *((target, "", {}, NONE) for target in ("docker-build", "docker-run", "docker-test")),
        ("docker-build", "exit 1", {}, "docker is installed, but does not answer"),
        ("docker-run", "[ $1 != image ]", {}, NO_IMAGE),
        ("docker-build", ENGINE, {"DEVICE": "tpu"}, "DEVICE=tpu: give cpu or cuda"),
        ("docker-build", ENGINE, {"STACK": "mxnet"}, "STACK=mxnet: give all, pytorch or tensorflow"),
        ("docker-build", ENGINE, {"STACK": "tensorflow", "DEVICE": "cuda"}, NO_CUDA),
        ("docker-build", ENGINE, {"WHEELS": "docker"}, "WHEELS=docker is not a folder with wheels"),
    ],
)
def test_make_reports_what_is_missing_or_does_not_exist(tmp_path, target, engine, given, said):
    path = tools(tmp_path / "bin", "cat")
    if engine:
        script(tmp_path / "bin" / "docker", engine)
    status, output = make(target, path, **given)
    assert (status != 0, said in output) == (True, True), output


def test_docker_build_passes_stack_device_and_wheels(tmp_path):
    path = tools(tmp_path / "bin", "cat")
    script(tmp_path / "bin" / "docker", ENGINE)
    (tmp_path / "torch.whl").touch()
    cuda = {"STACK": "pytorch", "DEVICE": "cuda", "WHEELS": str(tmp_path)}
    built = "engine build -f docker/Dockerfile --build-arg STACK={0} --build-arg DEVICE={1} {2}-t hvdtrain:{0}-{1} ."
    assert built.format("all", "cpu", "") in make("docker-build", path)[1]
    context = f"--build-context wheels={tmp_path} "
    assert built.format("pytorch", "cuda", context) in make("docker-build", path, **cuda)[1]


def test_docker_run_uses_the_gpus_of_the_host(tmp_path):
    path = tools(tmp_path / "bin")
    script(tmp_path / "bin" / "docker", ENGINE)
    script(tmp_path / "bin" / "nvidia-smi", "echo GPU 0: a GPU")
    run, volume = "engine run --rm --ipc=host", "-v hvdtrain-runs:/home/hvdtrain/runs"
    assert make("docker-run", path, NP="4")[1].splitlines()[-1] == (
        f"{run} --gpus all {volume} hvdtrain:all-cuda horovodrun -np 4 python -m hvdtrain.torch_lenet"
    )
    assert (
        f"{run} {volume} hvdtrain:all-cpu bash -c nproc; id"
        in make("docker-run", path, DEVICE="cpu", CMD="nproc; id")[1]
    )
    # No image has TensorFlow's current CUDA.
    assert make("docker-run", path, STACK="tensorflow")[1].splitlines()[-1] == (
        f"{run} {volume} hvdtrain:tensorflow-cpu horovodrun -np 2 python -m hvdtrain.tensorflow_lenet"
    )


@pytest.mark.needs()
@pytest.mark.parametrize(
    ("stack", "frameworks"),
    [("all", ["torch", "mxnet", "tensorflow"]), ("pytorch", ["torch"]), ("tensorflow", ["tensorflow"])],
)
def test_docker_test_trains_in_each_framework_of_the_stack(tmp_path, stack, frameworks):
    path = tools(tmp_path / "bin")
    script(tmp_path / "bin" / "docker", ENGINE)
    status, output = make("docker-test", path, STACK=stack)
    assert status == 0
    assert re.findall(rf"hvdtrain:{stack}-cpu .* python -m hvdtrain.(\w+)_lenet --max-steps 20", output) == frameworks


def test_cuda_compiler_is_of_the_release_of_the_cuda_that_pytorch_brings():
    """And each file has a hash: set-up's lock does not compare these."""
    locked = re.findall(r"^nvidia-cuda-runtime==(\S+)", LOCK.read_text(), re.M)
    pins = [line for line in (DOCKER / "toolkit-cuda.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins
    for pin in pins:
        version = re.fullmatch(r"nvidia-[a-z-]+==([\d.]+) --hash=sha256:[0-9a-f]{64}", pin)
        assert version, pin
        assert version[1] in locked, pin


@as_root
@pytest.mark.parametrize(
    ("version", "expected"), [("", ["2.14.1+cpu", "2.15.0+cpu"]), ("2.9.0+cpu", ["2.9.0+cpu"] * 2)]
)
def test_the_image_keeps_each_python_s_pin_of_pytorch(tmp_path, version, expected):
    """Up to set-up, with the image's folders in a namespace."""
    for name in ("docker", "setup"):
        shutil.copytree(ROOT / name, tmp_path / name)
    file = tmp_path / "setup" / "stacks" / "pytorch" / "constraints.txt"
    file.write_text('torch==2.14.1 ; python_version < "3.11"\ntorch==2.15.0 ; python_version >= "3.11"\ntorchx==1\n')
    script(tmp_path / "setup" / "environment.sh", "exit 7")
    script(tmp_path / "python3", "")
    mounts = "mount -t tmpfs none /opt; mount -t tmpfs none /etc/ld.so.conf.d; mkdir -p /opt/venv"
    command = unshared("-m", f"{mounts}; cd {shlex.quote(str(tmp_path))}")
    variables = {
        "STACK": "pytorch",
        "DEVICE": "cpu",
        "TORCH_VERSION": version,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    done = subprocess.run([*command, "docker/environment.sh"], env={**os.environ, **variables})
    assert done.returncode == 7
    assert re.findall(r'^torch==(\S+) ; python_version (?:<|>=) "3.11"$', file.read_text(), re.M) == expected
    assert "torchx==1\n" in file.read_text()


def test_compose_shares_a_key_and_the_image_holds_no_secret():
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    assert set(compose["services"]) == {"node1", "node2"}
    for name, node in compose["services"].items():
        assert node["hostname"] == name
        assert {volume.partition(":")[0] for volume in node["volumes"]} == set(compose["volumes"])
        assert (DOCKER / node["build"]["context"] / node["build"]["dockerfile"]).is_file()
        # The tag of docker/image.sh for the same stack and device.
        assert node["image"] == "hvdtrain:" + "-".join(node["build"]["args"][word] for word in ("STACK", "DEVICE"))
    text = (DOCKER / "Dockerfile").read_text()
    assert "ssh-keygen" not in text
    assert "/etc/ssh/ssh_host_*" in text
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] != "root"


def test_dockerignore_admits_all_files_that_the_image_needs():
    """Whatever the Dockerfile copies is admitted by .dockerignore."""
    let = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in (DOCKER / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert source in let, source
                assert (ROOT / source).exists(), source
