"""Limits on the time in which all ranks start and shut Horovod down, and a start that is suspended for longer.

In processes: ranks and an agent that a test suspends, or that end themselves.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from support.jobs import ROOT

from hvdtrain.collectives.limits import shut_down_horovod
from hvdtrain.collectives.ring import RingGroup
from hvdtrain.errors import UserError
from hvdtrain.jobs.gloo import Store
from hvdtrain.system.network import free_port
from hvdtrain.system.rank_info import RankInfo, start_timeout_s

PROGRAM = """
import time
from hvdtrain.collectives.limits import limited_start

with limited_start():
    pass
time.sleep(1)
with limited_start():
    time.sleep(60)
"""
VARIABLES = {"HVDTRAIN_RANK": "0", "HVDTRAIN_SIZE": "2", "HVDTRAIN_LOCAL_RANK": "0", "HVDTRAIN_START_TIMEOUT": "0.5"}


def test_rank_without_an_address_in_the_rendezvous_is_named(tmp_path, monkeypatch):
    """Rank 0 has put its own there; a start that is in time does not end the process."""
    store = Store("127.0.0.1")
    address = f"http://127.0.0.1:{store.port}/global/0"
    urllib.request.urlopen(urllib.request.Request(address, b"address", method="PUT")).close()
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(store.port))
    ended = subprocess.run([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True, timeout=50)
    assert ended.returncode == 1
    assert ended.stderr.startswith("hvdtrain: rank 1 did not initialize Horovod within 0.5 s; ")


def test_invalid_limit():
    assert start_timeout_s({}) == 120
    for text in ("soon", "-1", "inf", "nan"):
        with pytest.raises(UserError, match="HVDTRAIN_START_TIMEOUT"):
            start_timeout_s({"HVDTRAIN_START_TIMEOUT": text})


def test_horovod_is_shut_down_within_the_limit(monkeypatch):
    """The end of a process does not wait for ever for a rank that no longer responds."""
    called, never = threading.Event(), threading.Event()

    def shutdown():
        called.set()
        never.wait(60)

    monkeypatch.setitem(sys.modules, "horovod.mxnet", SimpleNamespace(shutdown=shutdown))
    try:
        shut_down_horovod(0.05)
        assert called.is_set()
    finally:
        never.set()


LIMIT_S, SUSPENDED_S = 3, 3.5
WAITS = f"""
import os, sys
import numpy as np
from hvdtrain.collectives.ring import RingGroup
from hvdtrain.jobs import protocol
from hvdtrain.system import agent_pipe, processes
from hvdtrain.system.rank_info import RankInfo
processes.SUSPENDED_S = 0.7
what, port = sys.argv[1], int(sys.argv[2])
print("up", flush=True)
sys.stdin.read(1)
if what == "agent":
    os.environ[agent_pipe.SUPERVISOR] = f"127.0.0.1:{{port}}"
    protocol.connect("token", {LIMIT_S})
else:
    ring = RingGroup(RankInfo("test", int(what), 2, int(what)), ("127.0.0.1", port), "token", {LIMIT_S})
    ring.sum(np.ones(1))
    ring.close()
"""


def join(rank, port):
    ring = RingGroup(RankInfo("test", rank, 2, rank), ("127.0.0.1", port), "token", 10)
    ring.sum(np.ones(1))
    ring.close()


def test_a_suspended_start_goes_on():
    """Each waits for its partner, which starts when all are resumed."""
    ports = {what: free_port() for what in ("0", "1", "agent")}
    command, pipe = [sys.executable, "-c", WAITS], subprocess.PIPE
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdin": pipe, "stdout": pipe, "bufsize": 0}
    waiting = {what: subprocess.Popen([*command, what, str(port)], **options) for what, port in ports.items()}
    for process in waiting.values():
        process.stdout.readline()
    for process in waiting.values():
        process.stdin.write(b"x")
    time.sleep(0.2)
    for process in waiting.values():
        process.send_signal(signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    for process in waiting.values():
        process.send_signal(signal.SIGCONT)
    with socket.create_server(("127.0.0.1", ports["agent"])) as launcher:
        partners = [threading.Thread(target=join, args=(1 - rank, ports[str(rank)])) for rank in (0, 1)]
        for partner in partners:
            partner.start()
        launcher.settimeout(30)
        launcher.accept()[0].close()
        waiting["agent"].kill()
    for partner in partners:
        partner.join()
    for process in waiting.values():
        process.communicate()
    assert [waiting[rank].returncode for rank in ("0", "1")] == [0, 0]
