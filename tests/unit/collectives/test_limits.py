"""Limits on the time in which all ranks start and shut Horovod down.

In a process, which ends itself.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from types import SimpleNamespace

import pytest

from hvdtrain.collectives.limits import shut_down_horovod
from hvdtrain.errors import UserError
from hvdtrain.jobs.gloo import Store
from hvdtrain.system.rank_info import start_timeout_s

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
