"""Ending a process shuts Horovod down, without waiting for ever for a rank that no longer responds."""

import sys
import threading
from types import SimpleNamespace

from hvdtrain.collectives.shutdown import shut_down_horovod


def test_horovod_is_shut_down_within_the_limit(monkeypatch):
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
