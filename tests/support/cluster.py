"""Several hosts and a Slurm cluster on one machine, for tests: Linux namespaces, which need root.

Each host has a name, a network interface eth0 on a bridge, loopback, /dev/shm, processes, and an sshd that accepts one
key made for it. They share a home folder, which is not that of the user who runs the tests. The machine's own network,
names and keys stay unchanged. No namespace has a name: all end with the process of the test, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvdtrain.system.processes import end_with_parent
from support.environment import fill_home, of_jobs
from support.jobs import BIN, PLACES, ROOT, end_all, finish, pids, start, wait_for

NETWORK = "10.77.31"
HOST_NEEDS = ("ip", "unshare", "nsenter", "sshd", "ssh", "ssh-keygen")
SLURM_NEEDS = ("slurmctld", "slurmd", "sbatch", "srun", "munged")


def need(programs: tuple[str, ...], packages: str) -> None:
    """Skip the test where this machine cannot run a cluster."""
    if os.geteuid() != 0:
        pytest.skip("several hosts need root, to create Linux namespaces")
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    missing = [name for name in programs if not shutil.which(name, path=path)]
    if missing:
        pytest.skip(f"several hosts need {', '.join(missing)}: apt-get install {packages}")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be created here")


SSHD = """\
Port 22
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
"""
SSH = """\
Host host*
  IdentityFile {folder}/id
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
# The first process of a host; the machine's cgroups stay visible, as slurmd needs them.
FIRST = """\
set -e
mount --make-rprivate /
hostname {name}
mkdir -p {folder}/{name}.cgroup
mount --rbind /sys/fs/cgroup {folder}/{name}.cgroup
mount -t sysfs sysfs /sys
mount --rbind {folder}/{name}.cgroup /sys/fs/cgroup
mount -t tmpfs tmpfs /dev/shm
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/passwd /etc/passwd
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd /run/munge
/usr/sbin/sshd -f {folder}/sshd_config -E {folder}/{name}.sshd.log
touch {folder}/{name}.ready
while :; do sleep 3600 & wait $! || true; done
"""


class Hosts:
    """host1 to hostN."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.names = folder, [f"host{number}" for number in range(1, count + 1)]
        self.home = folder / "home"
        self._networks: dict[str, int] = {}
        """A process in the network of each host, and in that of the switch."""
        self._first: dict[str, int] = {}

    def up(self) -> None:
        folder = self.folder
        folder.chmod(0o711)
        for key in ("id", "hostkey"):
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        lines = [f"{self.address(name)} {name}" for name in self.names]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        (folder / "sshd_config").write_text(SSHD.format(folder=folder))
        self._make_home()
        self._new_network("switch")
        self._ip("switch", "link", "add", "br0", "type", "bridge")
        self._ip("switch", "link", "set", "br0", "up")
        for name in self.names:
            self._add(name)
        PLACES.append(self._ending_started)

    def _make_home(self) -> None:
        """The home of the hosts' root: bash reads its start-up files at each ssh, and ssh its configuration."""
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        (self.home / ".ssh" / "config").write_text(SSH.format(folder=self.folder))
        (self.home / ".ssh" / "config").chmod(0o600)
        fill_home(self.home, Path.home())
        own = f"{pwd.getpwuid(0).pw_name}:x:0:0::{self.home}:/bin/bash"  # the first line of a user counts
        (self.folder / "passwd").write_text(f"{own}\n{Path('/etc/passwd').read_text()}")

    def _new_network(self, name: str) -> None:
        own = os.readlink("/proc/self/ns/net")
        process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=_as_child)
        wait_for(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != own, 10)
        self._networks[name] = process.pid

    def _ip(self, name: str, *words: str) -> None:
        """ip, in the network of a host or the switch."""
        _do("nsenter", f"--net=/proc/{self._networks[name]}/ns/net", "ip", *words)

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def _add(self, name: str) -> None:
        self._new_network(name)
        port, switch = f"to-{name}", str(self._networks["switch"])
        self._ip(name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
        self._ip("switch", "link", "set", port, "master", "br0", "up")
        self._ip(name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            self._ip(name, "link", "set", link, "up")
        script = self.folder / f"{name}.sh"
        script.write_text(FIRST.format(folder=self.folder, name=name))
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                ["nsenter", f"--net=/proc/{self._networks[name]}/ns/net", "unshare", *spaces, "bash", str(script)],
                env=of_jobs(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_as_child,
            )
        log = self.folder / f"{name}.log"
        wait_for(
            (self.folder / f"{name}.ready").exists,
            10,
            lambda: f"the host cannot be created: {log.read_text()}",
            pytest.skip.Exception,
        )
        self._first[name] = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    def start(self, name: str, words: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
        own = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.home),
            **environment,
        }
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        enter = ["nsenter", "-t", str(self._first[name]), *spaces, f"--wd={folder}", "--"]
        return start([*enter, *words], folder, **own)

    def run(
        self, name: str, words: list[str], folder: Path, timeout_s: float = 120, **environment: str
    ) -> tuple[int, str]:
        """Exit status and output of a program on a host."""
        return finish(self.start(name, words, folder, **environment), timeout_s)

    def cable(self, name: str, plugged: bool) -> None:
        """Connect or disconnect a host from the others."""
        self._ip("switch", "link", "set", f"to-{name}", "up" if plugged else "down")

    def processes(self, name: str) -> dict[int, str]:
        """Command lines of a host's processes, by their ids in this machine's PID namespace."""
        return self._processes(self._first[name])

    def _processes(self, *first: int) -> dict[int, str]:
        spaces = {os.readlink(f"/proc/{pid}/ns/pid") for pid in first}
        found = {}
        for pid in pids():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") in spaces:
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def programs(self, mark: str) -> dict[str, list[int]]:
        """Processes of each host whose command line contains a text."""
        return {name: sorted(pid for pid, line in self.processes(name).items() if mark in line) for name in self._first}

    @contextlib.contextmanager
    def _ending_started(self) -> Iterator[None]:
        before = self._processes(*self._first.values()).keys()
        yield
        end_all(lambda: self._processes(*self._first.values()).keys() - before)

    def down(self) -> None:
        if self._ending_started in PLACES:
            PLACES.remove(self._ending_started)
        for pid in (*self._first.values(), *self._networks.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


SLURM = """\
ClusterName=test
SlurmctldHost={head}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# How long a requeued job waits; the default is two minutes.
AuthInfo=cred_expire=8
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2
JobRequeue=1
KillWait=2
SlurmdTimeout=10
SlurmctldTimeout=10
NodeName={nodes} CPUs=2 RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


STATE_EVERY_S = 0.5
"""How often tests ask for a job's state, which takes a process."""


class Slurm:
    """A real Slurm: its controller on the last of the hosts, a node on each other."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        *self.nodes, self.head = hosts.names
        # Submitted jobs are recorded in the second one, and not below this machine's home folder.
        self._variables = {"SLURM_CONF": str(folder / "slurm.conf")}

    def up(self) -> None:
        for name in ("state", "munge", *(f"{kind}.{node}" for node in self.nodes for kind in ("spool", "tmp"))):
            (self.folder / name).mkdir()
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        text = SLURM.format(
            head=self.head, folder=self.folder, nodes=",".join(self.nodes), memory=total // len(self.nodes) - 256
        )
        (self.folder / "slurm.conf").write_text(text)
        for name in self.hosts.names:
            own = [f"--{what}={self.folder}/munge/{name}.{what[:4]}" for what in ("log-file", "seed-file")]
            self.run(["munged", "--force", f"--key-file={key}", "--pid-file=/run/munge/pid", *own], on=name)
            self.run(["slurmctld"] if name == self.head else ["slurmd", "-N", name], on=name)
        wait_for(
            lambda: self.run(["sinfo", "-h", "-t", "idle", "-o", "%D"])[1].strip() == str(len(self.nodes)),
            30,
            lambda: f"Slurm cannot be started here: {self.run(['sinfo', '-N', '-l'])[1]}",
            pytest.skip.Exception,
        )
        PLACES.append(self._ending_submitted)

    def down(self) -> None:
        """Of what `up` does, the hosts end the rest."""
        PLACES.remove(self._ending_submitted)

    @contextlib.contextmanager
    def _ending_submitted(self) -> Iterator[None]:
        """Jobs that wait are nobody's processes, and those that run would be queued again."""
        yield
        if self._jobs():
            self.run(["scancel", *self._jobs()])
            wait_for(lambda: not self._jobs(), 20, every_s=STATE_EVERY_S)

    def _jobs(self) -> list[str]:
        """All that wait or run."""
        status, output = self.run(["squeue", "--noheader", "--format=%i"])
        return [] if status else output.split()

    def run(
        self, words: list[str], folder: Path | None = None, on: str = "", timeout_s: float = 120, **environment: str
    ) -> tuple[int, str]:
        """Exit status and output of a program on the head, or another host."""
        own = {**self._variables, **environment}
        return self.hosts.run(on or self.head, words, folder or self.folder, timeout_s, **own)

    def start(self, words: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
        own = {**self._variables, **environment}
        return self.hosts.start(self.head, words, folder, **own)

    def wait_for_state(self, job: str, state: str, timeout_s: float, describe: Callable[[], object]) -> None:
        wait_for(
            lambda: self.state(job) == state,
            timeout_s,
            lambda: f"{self.state(job)}: {describe()}",
            every_s=STATE_EVERY_S,
        )

    def state(self, job: str) -> str:
        """Such as RUNNING, COMPLETED, FAILED; empty where Slurm no longer has a record of the job."""
        _, output = self.run(["scontrol", "show", "job", job, "--oneliner"])
        return next((word[9:] for word in output.split() if word.startswith("JobState=")), "")


def _as_child() -> None:
    """In a session of its own, which Ctrl-C does not reach, and ended by the kernel with this process."""
    os.setsid()
    end_with_parent()


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"namespaces cannot be created here: {shlex.join(words)}: {done.stderr.strip()}")
