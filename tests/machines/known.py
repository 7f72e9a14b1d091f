"""The machines, in groups with the same commands."""

from __future__ import annotations

from machines.chroots import Chroot
from machines.images import Image
from machines.machine import Command, Machine
from machines.narrow_path import NarrowPath

README = {
    "docs": Command("make docs"),  # first, as it promises to need no set-up
    "train": Command("make train"),
    "unit": Command("make test ARGS=tests/unit"),
    "test": Command("make test"),
}
RELEASES = {
    "Debian 12": "bookworm",
    "Debian 13": "trixie",
    "Debian testing": "testing",
    "Ubuntu 22.04": "jammy",
    "Ubuntu 24.04": "noble",
    "Ubuntu 26.04": "resolute",
}
USERS = {"root": "root", "user": "an ordinary user, for whom root installs what set-up names"}

# As the first lines of compose.yaml say, once each node's sshd answers.
NODES = """\
set -e
on() { podman exec $(podman ps -qf label=com.docker.compose.service=$1) "${@:2}"; }
. setup/stacks/$STACK/stack.conf
trap 'podman-compose -f docker/compose.yaml down -v' EXIT
podman-compose -f docker/compose.yaml up -d
for node in node1 node2; do
    for _ in {1..60}; do ! on $node ssh localhost true || break; sleep 1; done
done
on node1 python -m hvdtrain launch horovodrun -n 2 -H node1:1,node2:1 --interface eth0 -- \\
    python -m hvdtrain.${FRAMEWORKS%% *}_lenet
"""
IMAGE = {
    "build": Command("make docker-build"),
    "run": Command("make docker-run", offline=True),
    "test": Command("make docker-test", offline=True),
    "nodes": Command(NODES, "training on the nodes of docker/compose.yaml", offline=True),
}

# What set-up installs before it builds Horovod, which takes hours in emulation.
INSTALL = """\
set -e
. setup/stacks/$STACK/stack.conf
python3 -m venv .venv
echo $STACK >.venv/.hvdtrain-stack
setup/install.sh "$PWD/.venv" -e ".[$EXTRAS]"
"""
PACKAGES = {
    "packages": Command("make packages"),
    "install": Command(INSTALL, "packages installed, without Horovod"),
}
PYTHON = ("g++", "patch", "python3", "python3-dev", "python3-venv")
STACKS = ("all", "pytorch", "tensorflow")

GROUPS: tuple[tuple[Machine, ...], ...] = (
    (
        *(
            Chroot(f"{release.lower().replace(' ', '-')}-{user}", f"{release}, minimal; {about}", suite, README, user)
            for release, suite in RELEASES.items()
            for user, about in USERS.items()
        ),
        NarrowPath("few-programs", "no ssh, rsh, ps and ip on PATH", README, ("ssh", "rsh", "ps", "ip")),
    ),
    tuple(Image(f"image-{stack}", f"STACK={stack}, podman, Debian 12", stack, IMAGE) for stack in STACKS),
    tuple(
        Chroot(f"aarch64-{stack}", f"STACK={stack}, Debian 12, emulated", "bookworm", PACKAGES, "root", "arm64", PYTHON,
               {"STACK": stack})
        for stack in STACKS
        if stack != "all"  # which set-up refuses there
    ),
)  # fmt: skip
