"""A start that is suspended for longer than its limit goes on: the ranks of a ring, and an agent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
from support.jobs import ROOT

from hvdtrain.collectives.ring import RingGroup
from hvdtrain.system.network import free_port
from hvdtrain.system.rank_info import RankInfo

LIMIT_S, SUSPENDED_S = 3, 3.5
WAITS = f"""
import os, sys
import numpy as np
from hvdtrain.collectives.ring import RingGroup
from hvdtrain.jobs import protocol
from hvdtrain.system import processes
from hvdtrain.system.rank_info import RankInfo
processes.SUSPENDED_S = 0.7
what, port = sys.argv[1], int(sys.argv[2])
print("up", flush=True)
sys.stdin.read(1)
if what == "agent":
    os.environ[protocol.SUPERVISOR] = f"127.0.0.1:{{port}}"
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    waiting = {
        what: subprocess.Popen(
            [sys.executable, "-c", WAITS, what, str(port)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for what, port in ports.items()
    }
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
