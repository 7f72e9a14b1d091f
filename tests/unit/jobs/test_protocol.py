"""The protocol between the supervisor and the ranks' agents."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading

import pytest

from hvdtrain.errors import UserError
from hvdtrain.jobs import protocol
from hvdtrain.system.credentials import proof


def test_an_agent_rejects_a_supervisor_without_the_token():
    """Each side must prove that it knows the token, and one side's proof is not valid for the other."""
    with pytest.raises(UserError, match="cannot be reached"):
        connect_to_an_impostor()
    assert proof("a", "challenge", "rank") != proof("a", "challenge", "supervisor")
    assert proof("a", "challenge", "rank") != proof("b", "challenge", "rank")


def connect_to_an_impostor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller:
                        challenge = json.loads(caller.makefile().readline())["challenge"]
                        wrong = proof("another token", challenge, "supervisor")
                        caller.sendall(protocol.encode({"challenge": "x", "proof": wrong}))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(protocol.SUPERVISOR, f"127.0.0.1:{server.getsockname()[1]}")
            protocol.connect("the token", 1.0)


def test_an_agent_reads_its_versions_before_it_connects():
    """That may take longer than the supervisor waits for a greeting: a slow shared folder holds the packages."""
    code = """
import os
from hvdtrain.jobs import agent, protocol
os.environ.update({protocol.SUPERVISOR: "127.0.0.1:1", "HVDTRAIN_LAUNCHER": "mpirun"})
agent.stacks.versions_here = lambda: print("versions") or {}
protocol.connect = lambda *_: print("connect") or exit(0)
agent.main(["--", "true"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["versions", "connect"], done.stderr


def test_any_bytes_are_transmitted_unchanged():
    for raw in (b"\xff\xfe\n", bytes(range(256)), "grün".encode()):
        assert protocol.to_bytes(protocol.to_text(raw)) == raw
