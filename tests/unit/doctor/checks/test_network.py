"""Network: interfaces, host names, ssh. Processes: in network namespaces of their own."""

from __future__ import annotations

import pytest
from support.doctor import as_root, doctor, path_with, requires, script, unshared


@as_root
def test_virtual_and_missing_interfaces(tmp_path):
    """Real interfaces, in a network namespace."""
    add = "; ip link add {0} type {2}; ip addr add {1} dev {0}; ip link set {0} up"
    code = "ip link set lo up" + add.format("docker0", "172.17.0.1/16", "bridge")
    more = add.format("eth0", "10.9.9.1/24", "veth peer name other")
    requires("unshare", "-n", "sh", "-ec", code)
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


@pytest.mark.needs("torch")
def test_ssh_to_other_hosts(tmp_path):
    """With an ssh that runs commands here: node1 is identical, node2 has another PyTorch, node3 refuses the login."""
    fake = tmp_path / "fake" / "torch-1.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    script(
        tmp_path / "bin" / "ssh",
        'while [ "$1" = -o ]; do shift 2; done; [ "$1" = -- ] && shift',
        f"case $1 in node1) ;; node2) export PYTHONPATH={tmp_path / 'fake'};;",
        '*) echo "$1: Permission denied (publickey)." >&2; exit 255;; esac',
        # The command itself sets PYTHONPATH where the caller has one.
        'exec sh -c "$(echo "$2" | sed "s|env PYTHONPATH=|env PYTHONPATH=$PYTHONPATH:|")"',
    )
    result = doctor(tmp_path, "--only", "ssh", "--hosts", "node1,node2,node3,-oProxyCommand=x",
                  PATH=path_with(tmp_path / "bin"))  # fmt: skip
    result.has("ssh", "ok", "node1: ssh works")
    result.has("ssh", "fail", "node2: it differs from this host: torch 1.0 against 2", remedy="make setup")
    result.has("ssh", "fail", "node3: no ssh without a password", "Permission denied", remedy="ssh-copy-id node3")
    result.has("ssh", "fail", "is not a host name", remedy="--hosts")
