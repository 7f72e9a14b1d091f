"""Interfaces, host names, and other hosts by ssh."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator

from hvdtrain.doctor.findings import Finding, Setting, check, fail, ok, warn
from hvdtrain.errors import UserError
from hvdtrain.launch import hosts
from hvdtrain.system.network import Interface, interfaces

SLOW_S = 2.0
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*")


@check("network", "host")
def check_interfaces(setting: Setting) -> Iterator[Finding]:
    """network interfaces, and which one Gloo and NCCL take"""
    found = interfaces()
    real = [one.name for one in found if not one.virtual]
    virtual = [one for one in found if one.virtual]
    chosen = list(_chosen(found, real))
    yield from chosen
    if not real:
        listed = f" ({', '.join(one.name for one in virtual)} leads to containers of this host only)" if virtual else ""
        text = f"no network interface to other hosts is up{listed}: all ranks must run on this host"
        yield warn(text, "ip link set eth0 up, or start the container with --network=host")
    elif virtual and "HOROVOD_GLOO_IFACE" not in os.environ:
        names = ", ".join(f"{one.name} ({one.address})" for one in virtual)
        text = f"{names} is up beside {', '.join(real)}, leads to no other host, and may be chosen for a job of several"
        yield warn(text, _by_hand(real))
    elif not any(finding.status == "fail" for finding in chosen):
        yield ok(", ".join(f"{one.name} {one.address}" for one in found) + " up")


def _by_hand(real: list[str]) -> str:
    name = real[0] if real else "eth0"
    return (
        f"horovodrun --network-interfaces {name}, export HOROVOD_GLOO_IFACE={name} NCCL_SOCKET_IFNAME={name}, "
        f"or mpirun --mca btl_tcp_if_include {name} --mca oob_tcp_if_include {name}"
    )


def _chosen(found: list[Interface], real: list[str]) -> Iterator[Finding]:
    """What is wrong with the interfaces that variables name."""
    there = {name for _, name in socket.if_nameindex()}
    up = {one.name: one for one in found}
    for variable in ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = os.environ.get(variable, "")
        # NCCL takes beginnings of names, and ^ for all others.
        names = [name for name in value.lstrip("=").split(",") if name and not value.startswith("^")]
        exact = variable != "NCCL_SOCKET_IFNAME"
        for name in names:
            matching = [one for one in there if one == name or (not exact and one.startswith(name))]
            if not matching:
                yield fail(f"{variable}={value}: there is no interface {name} here", _by_hand(real))
            elif name in up and up[name].virtual:
                text = f"{variable}={value}: {name} ({up[name].address}) is virtual and leads to no other host"
                yield fail(text, _by_hand(real)) if real else warn(text, _by_hand(real))
            elif not any(one in up or one == "lo" for one in matching):
                yield fail(f"{variable}={value}: interface {name} is down or has no address", _by_hand(real))


@check("network", "host")
def check_host_name(setting: Setting) -> Iterator[Finding]:
    """this host's own name resolves, which Gloo needs"""
    name = socket.gethostname()
    told, done = setting.probe("resolve", name, limit_s=15)
    found = told.get(name, {"error": done.reason()})
    remedy = f"echo '127.0.1.1 {name}' >> /etc/hosts (on several hosts: the address that the others reach)"
    if "error" in found:
        text = f"this host's name {name} does not resolve ({found['error']}): Gloo's ranks crash, and mpirun may hang"
        yield fail(text, remedy)
        return
    addresses = found["addresses"]
    if found["seconds"] > SLOW_S:
        yield warn(f"it took {found['seconds']:.1f} s to resolve {name}", remedy)
    local = all(address.startswith("127.") for address in addresses)
    if local and setting.hosts:
        text = f"{name} resolves to {addresses[0]}, which no other host can reach"
        yield warn(text, "in /etc/hosts, give it the address of the interface to the other hosts")
    else:
        yield ok(f"{name} resolves to {', '.join(addresses)}")


@check("network", "host")
def check_ssh(setting: Setting) -> Iterator[Finding]:
    """ssh without a password to --hosts, and the same versions and files there"""
    if not setting.hosts:
        return
    wrong = [host for host in setting.hosts if not HOST.fullmatch(host)]
    for host in wrong:
        yield fail(f"--hosts {host!r} is no host name", "give names with commas between them: --hosts node1,node2")
    try:
        answers = hosts.ask([host for host in setting.hosts if host not in wrong])
    except UserError as error:
        reason, _, remedy = str(error).partition(": ")
        yield fail(reason, remedy)
        return
    for one in answers:
        if one.problem:
            yield fail(f"{one.host}: {one.problem}", one.remedy)
        else:
            yield ok(f"{one.host}: ssh works, the same versions and files there")
