"""Other hosts by ssh, with a program in place of ssh that answers as the real one does."""

from __future__ import annotations

import os

import pytest

from hvdtrain.errors import UserError
from hvdtrain.launch import hosts
from hvdtrain.launch.job import Host


def test_hosts_that_cannot_be_reached_are_named(monkeypatch, tmp_path):
    """With an ssh that answers as the real one does."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nfor host; do case $host in node*) break;; esac; done\n"
        "case $host in node1) echo 'ada@node1: Permission denied (publickey).' >&2; exit 255;;\n"
        "node2) echo 'bash: python: No such file or directory' >&2; exit 127;;\n"
        '*) echo \'{"python": "2.7"}\';; esac\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError) as raised:
        hosts.check_hosts(["node1", "node2", "node3"])
    text = str(raised.value)
    assert "node1: no ssh without a password (ada@node1: Permission denied (publickey).); ssh-keygen" in text
    assert "node2: " in text and "does not run there" in text
    assert "node3: it differs from this host: python 2.7 against " in text


def test_a_host_that_differs_gives_a_reason_and_a_remedy(monkeypatch):
    problem = hosts.Answer("node3", "it differs from this host: python 2.7 against 3.10", "run make setup on both")
    monkeypatch.setattr(hosts, "ask", lambda names: [hosts.Answer("node1"), problem])
    with pytest.raises(UserError) as raised:
        hosts.check_hosts(["node1", "node3"])
    assert (raised.value.reason, raised.value.remedy) == (f"node3: {problem.problem}", problem.remedy)


def test_other_hosts_are_those_with_another_name_than_this_one(monkeypatch):
    """Slurm's name of the node counts as this host's name."""
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    names = ["localhost", "127.0.0.1", os.uname().nodename, "node1.cluster", "node9"]
    assert hosts.elsewhere([Host(name, 1) for name in names]) == ["node1.cluster", "node9"]
    monkeypatch.setenv("SLURMD_NODENAME", "node9")
    assert hosts.elsewhere([Host(name, 1) for name in ("localhost", "node1", "node9")]) == ["node1"]
