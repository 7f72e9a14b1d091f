"""The machine and its network: slots, memory, limits, folders, data, interfaces, names, ssh.

Processes: with limits, mounts and network namespaces of their own.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.doctor import as_root, doctor, path_with, unshared
from support.environment import script

from hvdtrain.doctor import quick
from hvdtrain.doctor.checks import machine
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.quick import check_memory, check_shm
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system import resources
from hvdtrain.system.rank_info import RankInfo


def two_ranks() -> CheckContext:
    return CheckContext(RankInfo("none", 0, 1, 0), 2, time.monotonic() + 60)


def test_more_ranks_or_threads_than_cores(tmp_path):
    cores = os.cpu_count() or 1
    slots = len(os.sched_getaffinity(0))
    result = doctor(tmp_path, "--only", "slots", "--ranks", str(20 * slots))
    result.has("slots", "warn", f"{20 * slots} ranks on {slots} core(s)", "oversubscribe", remedy=f"at most {slots}")
    result = doctor(tmp_path, "--only", "threads", OMP_NUM_THREADS=str(4 * cores))
    result.has("threads", "warn", f"OMP_NUM_THREADS={4 * cores} is too high", remedy="export OMP_NUM_THREADS=")
    result = doctor(tmp_path, "--only", "threads", "--ranks", str(2 * cores), OMP_NUM_THREADS="")
    result.has("threads", "ok", f"{2 * cores} rank(s) times 1 thread(s)")
    result = doctor(tmp_path, "--only", "threads", OMP_NUM_THREADS="many")
    result.has("threads", "fail", "is not a positive integer", remedy="OMP_NUM_THREADS=")


@as_root
def test_small_shared_memory_and_read_only_or_full_folder(tmp_path):
    """Small tmpfs over /dev/shm, and over the folder of runs: read-only, then full."""
    (tmp_path / "runs").mkdir()
    code = f"mount -t tmpfs -o size=16m none /dev/shm; mount -t tmpfs -o ro none {tmp_path / 'runs'}"
    result = doctor(tmp_path, "--only", "shm", "folder", by=unshared("-m", code))
    result.has("shm", "fail", "16 MiB free of 16 MiB", "too small", remedy="--shm-size")
    result.has("folder", "fail", "runs is not writable", "Read-only", remedy="--runs")
    result = doctor(tmp_path, "--only", "shm", by=unshared("-m", "mount -t tmpfs -o ro,size=1g none /dev/shm"))
    result.has("shm", "fail", "/dev/shm is not writable", remedy="remount,rw")
    code = f"mount -t tmpfs -o size=80m none /dev/shm; mount -t tmpfs -o size=50m none {tmp_path / 'runs'}"
    result = doctor(tmp_path, "--only", "shm", "folder", by=unshared("-m", code))
    result.has("shm", "warn", "80 MiB", "too small for 2 ranks", remedy="--shm-size")
    result.has("folder", "fail", "full", remedy="--runs")


def test_a_folder_of_runs_that_is_a_file_and_few_open_files(tmp_path):
    (tmp_path / "runs").write_text("")
    few = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
    result = doctor(tmp_path, "--only", "folder", "limits", by=few)
    result.has("folder", "fail", str(tmp_path / "runs"), remedy="--runs")
    result.has("limits", "fail", "64 files may be open", remedy="ulimit -n")
    assert result.status == 1


def test_shared_memory_that_can_hold_no_more_files(monkeypatch):
    context = two_ranks()
    fields = [4096, 4096, 1 << 20, 1 << 20, 1 << 20, 10, 0, 0, 0, 255]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    (finding,) = check_shm(context)
    assert finding.status == "fail" and "files" in finding.text and finding.remedy
    fields[5] = 0  # file systems without such a limit
    assert next(check_shm(context)).status == "ok"


@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", 0),  # before Linux 4.13
        ("memory.current", "7\n", 0),
    ],
)
def test_kills_of_the_control_group(tmp_path, monkeypatch, name, text, kills):
    """Those of groups around it may be of other jobs."""
    for folder in ("own", "outer"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(resources, "cgroups", lambda _: [tmp_path / "own", tmp_path / "outer"])
    assert resources.out_of_memory_kills() == kills


def test_cgroup_limits(tmp_path, monkeypatch):
    """Versions 1 and 2, as folders with the files of a cgroup."""
    (tmp_path / "memory.max").write_text("536870912\n")
    (tmp_path / "memory.current").write_text("436870912\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "v1" / "memory.usage_in_bytes").write_text("1\n")
    (tmp_path / "v1" / "cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "v1" / "cpu.cfs_period_us").write_text("50000\n")
    monkeypatch.setattr(resources, "cgroups", lambda _: [tmp_path / "v1", tmp_path])
    assert resources.memory_limit() == (536870912, 436870912)
    assert resources.cpu_quota() == 1, "that of a group above counts, too"
    context = two_ranks()
    (memory,) = [finding for finding in check_memory(context) if "cgroup" in finding.text]
    assert memory.status == "fail" and "512 MiB" in memory.text and "fewer ranks" in memory.remedy
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 400000000\n")
    assert resources.memory_limit() == (536870912, 36870912), "the kernel frees these pages of files"
    (tmp_path / "memory.current").write_text("936870912\n")  # for a moment it may be above the limit
    assert any(finding.text.startswith("0 ") for finding in check_memory(context))
    monkeypatch.setattr(resources, "cgroups", lambda _: [tmp_path / "v1"])
    assert resources.cpu_quota() == 4


@pytest.mark.parametrize(
    "content", [None, "", "MemAvailable: ? kB\n", "\xff:\n\n: 1\nMemFree 1 kB\n", "MemTotal: 8 kB\n"]
)
def test_memory_that_the_system_does_not_tell(tmp_path, monkeypatch, content):
    monkeypatch.setattr(quick, "MEMINFO", tmp_path / "meminfo")
    if content is not None:
        quick.MEMINFO.write_text(content, "latin-1")
    context = two_ranks()
    monkeypatch.setattr(quick, "memory_limit", lambda: (0, 0))
    (finding,) = check_memory(context)
    assert finding.status == "warn" and finding.remedy and "0 B free" not in finding.text
    monkeypatch.setattr(quick, "memory_limit", lambda: (16 << 30, 1 << 30))
    (finding,) = check_memory(context)
    assert finding.status == "ok" and "15.0 GiB left of the cgroup's 16.0 GiB" in finding.text


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ({"fp32": 2e-3, "bf16": 3.5e-3}, "ok", "faster in fp32: a product in torch takes 2 ms in fp32 and 3.5 ms"),
        ({"fp32": 3.1e-3, "bf16": 1.2e-3}, "ok", "faster in bf16"),
        ({"fp32": 2e-3, "bf16": 2e-3}, "ok", "as fast in fp32 as in bf16"),
        ({"fp32": 2e-3}, "warn", "cannot multiply matrices in both precisions (killed by SIGILL)"),
    ],
)
def test_the_faster_precision(answer, status, text, monkeypatch):
    monkeypatch.setattr(machine, "has_module", lambda name: name == "torch")
    completed = Completed(-signal.SIGILL, "", "", 30)
    monkeypatch.setattr(CheckContext, "probe", lambda *_, **__: (answer, completed))
    (finding,) = machine.check_precision(two_ranks())
    assert finding.status == status and text in finding.text


@as_root
def test_virtual_and_missing_interfaces(tmp_path):
    """Real interfaces, in a network namespace."""
    add = "; ip link add {0} type {2}; ip addr add {1} dev {0}; ip link set {0} up"
    code = "ip link set lo up" + add.format("docker0", "172.17.0.1/16", "bridge")
    more = add.format("eth0", "10.9.9.1/24", "veth peer name other")
    result = doctor(tmp_path, "--only", "interfaces", by=unshared("-n", code + more), HOROVOD_GLOO_IFACE="docker0")
    text = ("HOROVOD_GLOO_IFACE=docker0", "172.17.0.1")
    result.has("interfaces", "fail", *text, remedy="--network-interfaces eth0")
    result = doctor(tmp_path, "--only", "interfaces", by=unshared("-n", code + more))
    result.has("interfaces", "warn", "docker0 (172.17.0.1) is up next to eth0", remedy="HOROVOD_GLOO_IFACE=eth0")
    result = doctor(tmp_path, "--only", "interfaces", by=unshared("-n", code), NCCL_SOCKET_IFNAME="ib0")
    result.has("interfaces", "warn", "no network interface to other hosts", remedy="eth0")
    result.has("interfaces", "fail", "no interface ib0", remedy="NCCL_SOCKET_IFNAME")


@as_root
def test_host_name_does_not_resolve(tmp_path):
    result = doctor(
        tmp_path, "--only", "host-name", by=unshared("-un", "hostname no-such-host-here; ip link set lo up")
    )
    result.has("host-name", "fail", "no-such-host-here does not resolve", remedy="/etc/hosts")
    code = "ip link set lo up; mount --bind /dev/null /etc/hosts"
    result = doctor(tmp_path, "--only", "host-name", by=unshared("-mn", code))
    result.has("host-name", "fail", "localhost does not resolve", remedy="/etc/hosts")


@pytest.mark.needs("torch")
def test_ssh_to_other_hosts(tmp_path):
    """With an ssh that runs commands here: node1 is identical, node2 has another PyTorch, node3 refuses the login."""
    fake = tmp_path / "fake" / "torch-1.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    script(
        tmp_path / "bin" / "ssh",
        'while [ "$1" != -- ]; do shift; done; shift',
        f"case $1 in node1) fake=;; node2) fake={tmp_path / 'fake'}:; export PYTHONPATH=$fake$PYTHONPATH;;",
        '*) echo "$1: Permission denied (publickey)." >&2; exit 255;; esac',
        # The command itself sets PYTHONPATH where the caller has one.
        'exec sh -c "$(echo "$2" | sed "s|PYTHONPATH=|PYTHONPATH=$fake|")"',
    )
    result = doctor(tmp_path, "--only", "ssh", "--hosts", "node1,node2,node3,-oProxyCommand=x",
                  PATH=path_with(tmp_path / "bin"))  # fmt: skip
    result.has("ssh", "ok", "node1: ssh works")
    result.has("ssh", "fail", "node2: it differs from this host: torch 1.0 against 2", remedy="make setup")
    result.has("ssh", "fail", "node3: no ssh without a password", "Permission denied", remedy="ssh-copy-id node3")
    result.has("ssh", "fail", "is not a host name", remedy="--hosts")


@pytest.mark.parametrize(("own", "status"), [("/bin/bash", "fail"), ("/usr/bin/tcsh", "ok")])
def test_a_host_with_a_login_shell_that_mpirun_cannot_use(tmp_path, own, status):
    """tcsh, for example: mpirun takes it for a shell of the kind of this host's."""
    refuses = 'case $2 in "A=1 "*) exit 1;; esac; exec sh -c "$2"'
    script(tmp_path / "bin" / "ssh", f'while [ "$1" != -- ]; do shift; done; shift; {refuses}')
    script(tmp_path / "bin" / "mpirun")
    result = doctor(tmp_path, "--only", "ssh", "--hosts", "node1", PATH=path_with(tmp_path / "bin"), SHELL=own)
    result.has("ssh", status, "node1: ssh works" if status == "ok" else "node1: its login shell does not run")


def test_without_ssh_jobs_run_on_this_host_only_or_not_at_all(tmp_path):
    """Some builds of Open MPI start nothing where they find no ssh."""
    script(tmp_path / "bin" / "mpirun", "[ -e /proc/self/cwd/starts ]")
    (tmp_path / "starts").touch()
    path = {"PATH": str(tmp_path / "bin")}
    doctor(tmp_path, "--only", "ssh", **path).has("ssh", "ok", "there is no ssh, which only jobs on other hosts need")
    (tmp_path / "starts").unlink()
    result = doctor(tmp_path, "--only", "ssh", **path)
    result.has("ssh", "warn", "mpirun and horovodrun with MPI start nothing", remedy="openssh-client")
    result = doctor(tmp_path, "--only", "ssh", "--hosts", "node1", **path)
    result.has("ssh", "fail", "no ssh on PATH", remedy="openssh-client")
    script(tmp_path / "bin" / "ssh")
    assert not doctor(tmp_path, "--only", "ssh", **path).findings_of("ssh")
