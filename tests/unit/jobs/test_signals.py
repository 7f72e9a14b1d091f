"""Which signals to the launcher ask for a stop, and which for an end at once."""

import asyncio
import os
import signal

from hvdtrain.jobs.signals import HANDLED, Request, Signals, StopRequests, signal_within


def test_repeated_signals():
    requests = StopRequests()
    assert requests.judge(signal.SIGTERM, 10) == Request.NEW
    assert requests.judge(signal.SIGTERM, 12.9) == Request.SAME
    assert requests.judge(signal.SIGINT, 13) == Request.NEW
    assert requests.judge(signal.SIGINT, 13.1) == Request.SAME
    assert requests.judge(signal.SIGINT, 13.3) == Request.REPEATED
    assert requests.judge(signal.SIGTERM, 13.1) == Request.REPEATED
    assert [requests.judge(signal.SIGUSR1, 10 + seconds) for seconds in (0, 1, 9)] == [Request.NEW] * 3


def test_a_signal_between_attempts_is_not_lost():
    async def check():
        signals = Signals()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert await signal_within(signals, 5) == signal.SIGTERM
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        assert await signal_within(signals, 5) == signal.SIGINT
        assert await signal_within(signals, 0.05) == 0

    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        asyncio.run(check())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
