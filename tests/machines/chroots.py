"""A minimal Debian or Ubuntu in a folder, made by debootstrap, in which commands run as root or as an ordinary user.

Each command has namespaces of its own, in which the folder is the root of all files. What it mounts and starts there
ends with it, however it ends, so only a folder is left to remove.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from machines.machine import Command, Run, Work, clone, lacking

STARTS = ("git", "make")
"""What a reader of README needs for its first lines."""
NAMESPACES = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
ENTER = """\
set -e
hostname {host}
cd {root}
mount --bind . .
cd {root}
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs dev/shm
{mounts}
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
exec setpriv --reuid={user} --regid={user} --init-groups env -i {variables} bash -c {line}
"""
HOME = {"root": Path("/root"), "user": Path("/home/user")}
REMEDY = re.compile(r"sudo apt-get install ([\w+. -]+)")
"""What set-up says to an ordinary user."""


UBUNTU = {"jammy", "noble", "resolute"}
UBUNTU_KEYS = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
UBUNTU_ARCHIVE = ("http://archive.ubuntu.com/ubuntu", "/usr/share/debootstrap/scripts/gutsy")
"""With the script of all its releases, as a debootstrap may not know the name of a new one."""


def debootstrapped(suite: str, foreign: str, work: Work) -> Path:
    """The folder of a release as debootstrap makes it, once for all machines."""
    base = work.bases / "-".join(filter(None, (suite, foreign)))
    if not base.exists():
        part = base.with_suffix(".part")
        work.run(["rm", "-rf", str(part)])
        options, archive = [f"--arch={foreign}"] if foreign else [], ()
        if suite in UBUNTU:
            options += [f"--keyring={UBUNTU_KEYS}", "--components=main,universe"]
            archive = UBUNTU_ARCHIVE
        work.run([*NAMESPACES, "debootstrap", "--variant=minbase", *options, suite, str(part), *archive])
        part.rename(base)
    return base


@dataclass(frozen=True)
class Chroot:
    """`suite` is the name of a release; `foreign` an architecture that is not this machine's, emulated."""

    name: str
    about: str
    suite: str
    commands: Mapping[str, Command]
    user: str = "root"
    foreign: str = ""
    packages: tuple[str, ...] = ()
    """Installed before the first command, besides STARTS."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> str:
        if os.geteuid():
            return "needs root"
        if reason := lacking("debootstrap", "unshare", "git"):
            return reason
        if self.suite in UBUNTU and not UBUNTU_KEYS.exists():
            return f"needs {UBUNTU_KEYS}, of the package ubuntu-keyring"
        if self.foreign and not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
            return "needs qemu-user-static, known to binfmt_misc"
        return ""

    @contextlib.contextmanager
    def made(self, work: Work) -> Iterator[Run]:
        root = work.folder / self.name
        try:
            work.run(["cp", "-a", str(debootstrapped(self.suite, self.foreign, work)), str(root)])
            self._prepare(root, work)

            def run(command: Command, log: IO[str]) -> int:
                """Again, where a command names packages that it needs: it may name others then."""
                for _ in range(3):
                    begin = log.tell()
                    status = self._enter(root, work, self.user, f"cd ~/hvdtrain && {command.line}", log)
                    named = REMEDY.findall(Path(log.name).read_bytes()[begin:].decode(errors="replace"))
                    if not status or not named or self.user == "root":
                        break
                    self._install(root, work, named[-1].split(), log)
                return status

            yield run
        finally:
            work.remove(root)

    def _prepare(self, root: Path, work: Work) -> None:
        settings, home = work.settings, root / HOME[self.user].relative_to("/")
        (root / "etc/pip.conf").write_text(settings.pip)
        (root / "etc/apt/apt.conf.d/99machine").write_text(settings.apt)
        for source, place in settings.mounts.items():
            inside = root / place.relative_to("/")
            inside.parent.mkdir(exist_ok=True)
            inside.mkdir() if source.is_dir() else inside.touch()
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        # Only what this machine's package indexes may need: debootstrap writes no such file, so nothing else resolves.
        lines = Path("/etc/hosts").read_text().splitlines(keepends=True)
        (root / "etc/hosts").write_text("".join(line for line in lines if not line.startswith(("127.", "::1"))))
        with open(work.logs / f"{self.name}.made.log", "w") as log:
            self._install(root, work, [*STARTS, *self.packages], log)
            if self.user != "root" and self._enter(root, work, "root", f"useradd -ms /bin/bash {self.user}", log):
                raise RuntimeError(f"no user can be added: {log.name}")
        (home / ".cache").mkdir()
        clone(home / "hvdtrain", work)
        owner = home.stat()
        work.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(home)])

    def _install(self, root: Path, work: Work, packages: Sequence[str], log: IO[str]) -> None:
        install = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {shlex.join(packages)}"
        if self._enter(root, work, "root", f"export DEBIAN_FRONTEND=noninteractive; {install}", log):
            raise RuntimeError(f"{', '.join(packages)} cannot be installed: {log.name}")

    def _enter(self, root: Path, work: Work, user: str, line: str, log: IO[str]) -> int:
        """Run a line in the machine, and return its status."""
        home = HOME[user]
        mounts = [(source, place, "ro") for source, place in work.settings.mounts.items()]
        if work.cache and (root / home.relative_to("/") / ".cache").is_dir():
            mounts.append((self._cache(root, work), home / ".cache", "rw"))
        variables = {
            "HOME": str(home),
            "USER": user,
            "PATH": "/usr/local/bin:/usr/bin:/bin" + ":/usr/local/sbin:/usr/sbin:/sbin" * (user == "root"),
            **work.settings.variables,
            **self.variables,
        }
        script = ENTER.format(
            host=self.name,
            root=shlex.quote(str(root)),
            mounts="\n".join(shlex.join(["mount", "-o", f"bind,{mode}", str(source), f".{place}"])
                             for source, place, mode in mounts),
            user=user,
            variables=shlex.join(f"{name}={value}" for name, value in variables.items()),
            line=shlex.quote(line),
        )  # fmt: skip
        return work.call([*NAMESPACES, "bash", "-c", script], log)

    def _cache(self, root: Path, work: Work) -> Path:
        """The folder that the user's cache of all machines of this kind is."""
        cache = work.cache / "-".join(filter(None, (self.user, self.foreign)))
        cache.mkdir(parents=True, exist_ok=True)
        owner = (root / HOME[self.user].relative_to("/") / ".cache").stat()
        os.chown(cache, owner.st_uid, owner.st_gid)
        return cache
