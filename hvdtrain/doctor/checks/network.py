"""Network interfaces, host names, and other hosts over ssh."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from hvdtrain.doctor.check import CheckContext, check
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.errors import UserError
from hvdtrain.system.network import HOST_NAME, Interface, interfaces

SLOW_LOOKUP_S = 2.0
INTERFACE_VARIABLES = ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@check("network", "host")
def check_interfaces(context: CheckContext) -> Iterator[Finding]:
    """network interfaces, and which one Gloo and NCCL use"""
    up = interfaces()
    real = [interface.name for interface in up if not interface.virtual]
    virtual = [interface for interface in up if interface.virtual]
    problems = list(_selected({interface.name: interface for interface in up}, real))
    yield from problems
    if not real:
        names = ", ".join(interface.name for interface in virtual)
        only = f" ({names} reaches containers of this host only)" if virtual else ""
        text = f"no network interface to other hosts is up{only}: all ranks must run on this host"
        yield warn(text, "ip link set eth0 up, or start the container with --network=host")
    elif virtual and "HOROVOD_GLOO_IFACE" not in os.environ:
        names = ", ".join(f"{interface.name} ({interface.address})" for interface in virtual)
        text = f"{names} is up next to {', '.join(real)}; it reaches no other host, but may be selected for a job"
        yield warn(text, _selection(real))
    elif not any(finding.status == "fail" for finding in problems):
        yield ok(", ".join(f"{interface.name} {interface.address}" for interface in up) + " up")


def _selection(real: list[str]) -> str:
    """How to select an interface."""
    name = real[0] if real else "eth0"
    return (
        f"horovodrun --network-interfaces {name}, export HOROVOD_GLOO_IFACE={name} NCCL_SOCKET_IFNAME={name}, "
        f"or mpirun --mca btl_tcp_if_include {name} --mca oob_tcp_if_include {name}"
    )


def _selected(up: dict[str, Interface], real: list[str]) -> Iterator[Finding]:
    """Problems with the interfaces that variables select."""
    existing = {name for _, name in socket.if_nameindex()}
    for variable in INTERFACE_VARIABLES:
        value = os.environ.get(variable, "")
        # NCCL matches prefixes of names, and excludes names after ^.
        names = [name for name in value.lstrip("=").split(",") if name and not value.startswith("^")]
        exact = variable != "NCCL_SOCKET_IFNAME"
        for name in names:
            matching = [other for other in existing if other == name or (not exact and other.startswith(name))]
            if not matching:
                yield fail(f"{variable}={value}: there is no interface {name} here", _selection(real))
            elif name in up and up[name].virtual:
                text = f"{variable}={value}: {name} ({up[name].address}) is virtual and reaches no other host"
                yield fail(text, _selection(real)) if real else warn(text, _selection(real))
            elif not any(match in up or match == "lo" for match in matching):
                yield fail(f"{variable}={value}: interface {name} is down or has no address", _selection(real))


@check("network", "host")
def check_host_name(context: CheckContext) -> Iterator[Finding]:
    """this host's own name resolves, which Gloo requires"""
    name = socket.gethostname()
    answer, completed = context.probe("resolve", name, limit_s=15)
    remedy = f"echo '127.0.1.1 {name}' >> /etc/hosts (with several hosts: the address that the others reach)"
    if "addresses" not in answer:
        reason = answer.get("error", completed.reason())
        text = f"this host's name {name} does not resolve ({reason}): ranks crash in Gloo, and mpirun may hang"
        yield fail(text, remedy)
        return
    addresses = answer["addresses"]
    if answer["seconds"] > SLOW_LOOKUP_S:
        yield warn(f"it took {answer['seconds']:.1f} s to resolve {name}", remedy)
    if context.hosts and all(address.startswith("127.") for address in addresses):
        text = f"{name} resolves to {addresses[0]}, which no other host can reach"
        yield warn(text, "in /etc/hosts, give it the address of the interface to the other hosts")
    else:
        yield ok(f"{name} resolves to {', '.join(addresses)}")


@check("network", "host")
def check_ssh(context: CheckContext) -> Iterator[Finding]:
    """ssh without a password to --hosts, and the same versions and files there"""
    if not context.hosts:
        return
    invalid = [host for host in context.hosts if not HOST_NAME.fullmatch(host)]
    for host in invalid:
        yield fail(f"--hosts {host!r} is not a host name", "give names separated by commas: --hosts node1,node2")
    from hvdtrain.jobs.hosts import inspect

    valid = [host for host in context.hosts if host not in invalid]
    try:
        answers = inspect(valid)
    except UserError as error:
        yield fail(error.reason, error.remedy)
        return
    for answer in answers:
        if answer.problem:
            yield fail(f"{answer.host}: {answer.problem}", answer.remedy)
        else:
            yield ok(f"{answer.host}: ssh works, with the same versions and files there")
