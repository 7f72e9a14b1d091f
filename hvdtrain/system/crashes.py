"""What a crash in native code does to this process."""

from __future__ import annotations

import faulthandler
import signal
import threading

STANDARD_ERROR = 2


def end_at_once() -> None:
    """Let a crash end this process by its signal, after the stacks of all Python threads; call it in the main thread.

    Call it when libraries are loaded. MXNet's handler calls exit(), in which Horovod waits for the other ranks, and
    they for this one.
    """
    if threading.current_thread() is not threading.main_thread():  # Python sets handlers nowhere else
        return
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)  # faulthandler continues with the handler that was there before
    faulthandler.enable(STANDARD_ERROR)
    # Libraries abort because of another rank, and have said so: stacks would hide it.
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
