"""The image of a stack for CPUs, built and run by podman from a base that debootstrap makes: no registry, no daemon.

Its containers, images, volumes and networks lie in a folder of their own, and those of the user stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from machines.chroots import debootstrapped
from machines.machine import Command, Run, Work, clone, environment, lacking

BASE = "docker.io/library/debian:bookworm-slim"
# runc, since crun refuses some trees of cgroups; limits that also a process without CAP_SYS_RESOURCE may set.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=10000:10000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/libpod"
[network]
network_config_dir = "{folder}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""


@dataclass(frozen=True)
class Image:
    name: str
    about: str
    stack: str
    commands: Mapping[str, Command]

    def missing(self) -> str:
        if os.geteuid():
            return "needs root"
        return lacking("debootstrap", "podman", "podman-compose", "netavark", "aardvark-dns", "runc", "git", "make")

    @contextlib.contextmanager
    def made(self, work: Work) -> Iterator[Run]:
        folder = work.folder / self.name
        variables = environment(**self._variables(folder, work))
        try:
            (folder / "tmp").mkdir(parents=True)
            (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder))
            (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
            (folder / "pip.conf").write_text(work.settings.pip)
            clone(folder / "hvdtrain", work)
            pack = f"tar -C {shlex.quote(str(debootstrapped('bookworm', '', work)))} -c . | podman import -q - {BASE}"
            work.run(["bash", "-o", "pipefail", "-c", pack], env=variables)

            def run(command: Command, log: IO[str]) -> int:
                alone = ["unshare", "--net"] if command.offline else []
                return work.call([*alone, "bash", "-c", command.line], log, cwd=folder / "hvdtrain", env=variables)

            yield run
        finally:
            if not work.keep:
                work.run(["podman", "system", "reset", "--force"], env=variables)
            work.remove(folder)

    def _variables(self, folder: Path, work: Work) -> dict[str, str]:
        mounts = [*work.settings.mounts.items(), (folder / "pip.conf", Path("/etc/pip.conf"))]
        return {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(folder / "tmp"),
            "ENGINE": "podman",
            "STACK": self.stack,
            "DEVICE": "cpu",
            "ARGS": shlex.join(["--pull-never", *(f"-v={source}:{place}:ro" for source, place in mounts)]),
        }
