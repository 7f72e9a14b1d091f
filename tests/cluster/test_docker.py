"""The image's Dockerfile, and the messages where it cannot be built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import yaml
from support.jobs import BIN, ROOT

DOCKER = ROOT / "docker"


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


def test_make_reports_that_no_engine_is_installed(tmp_path):
    path = tools(tmp_path / "bin")
    for target in ("docker-build", "docker-run", "docker-test"):
        status, output = make(target, path)
        assert status != 0
        assert "no docker and no podman on PATH: install one (apt-get install podman)" in output


def test_make_reports_an_engine_that_does_not_respond_and_a_missing_image(tmp_path):
    path = tools(tmp_path / "bin", "cat")
    engine = tmp_path / "bin" / "docker"
    engine.write_text("#!/bin/sh\nexit 1\n")
    engine.chmod(0o755)
    assert "docker is installed, but does not answer" in make("docker-build", path)[1]
    engine.write_text('#!/bin/sh\ncase "$1" in version) ;; image) exit 1;; *) echo "engine $*";; esac\n')
    status, output = make("docker-run", path)
    assert (status != 0, "there is no image hvdtrain:cpu: make docker-build DEVICE=cpu" in output) == (True, True)
    status, output = make("docker-build", path)
    assert status == 0
    assert "engine build -f docker/Dockerfile --build-arg DEVICE=cpu -t hvdtrain:cpu ." in output
    assert "DEVICE=tpu: give cpu or cuda" in make("docker-build", path, DEVICE="tpu")[1]


def test_docker_run_uses_the_gpus_of_the_host(tmp_path):
    path = tools(tmp_path / "bin")
    for name, text in (("docker", 'echo "engine $*"'), ("nvidia-smi", "echo GPU 0: a GPU")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    assert make("docker-run", path, NP="4")[1].splitlines()[-1] == (
        "engine run --rm --ipc=host --gpus all -v hvdtrain-runs:/home/hvdtrain/runs hvdtrain:cuda "
        "horovodrun -np 4 python -m hvdtrain.mxnet_lenet"
    )
    assert (
        "engine run --rm --ipc=host -v hvdtrain-runs:/home/hvdtrain/runs hvdtrain:cpu bash -c nproc; id"
        in make("docker-run", path, DEVICE="cpu", CMD="nproc; id")[1]
    )


def test_compose_shares_a_key_and_the_image_holds_no_secret():
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    assert set(compose["services"]) == {"node1", "node2"}
    for name, node in compose["services"].items():
        assert node["hostname"] == name
        assert {volume.partition(":")[0] for volume in node["volumes"]} == set(compose["volumes"])
        assert (DOCKER / node["build"]["context"] / node["build"]["dockerfile"]).is_file()
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
