"""The end of a process whose ranks are connected. Imports no framework: the process may end before it loads one."""

from __future__ import annotations

import sys
import threading

MODULES = ("horovod.mxnet", "horovod.torch", "horovod.tensorflow")


def shut_down_horovod(limit_s: float) -> None:
    """Shut down Horovod where this process has initialized it; an end without that looks to other ranks like a failure.

    Horovod ends its connections on all ranks together. A rank that does not respond is waited for `limit_s` seconds.
    """
    loaded = [sys.modules[name] for name in MODULES if name in sys.modules]
    threads = [threading.Thread(target=hvd.shutdown, daemon=True) for hvd in loaded]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
