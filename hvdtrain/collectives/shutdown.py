"""The end of a process whose ranks are connected. Imports no framework: the process may end before it loads one."""

from __future__ import annotations

import sys
import threading
from typing import get_args

from hvdtrain.config.options import Framework


def shut_down_horovod(limit_s: float) -> None:
    """Shut down Horovod where this process has initialized it; an end without that looks to other ranks like a failure.

    Horovod ends its connections on all ranks together. A rank that does not respond is waited for `limit_s` seconds.
    """
    loaded = [sys.modules.get(f"horovod.{framework}") for framework in get_args(Framework)]
    threads = [threading.Thread(target=hvd.shutdown, daemon=True) for hvd in loaded if hvd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
