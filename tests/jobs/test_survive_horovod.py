"""Horovod's processes of one membership: lost ranks are left at once, and the others connect again in memory."""

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest
from support.jobs import ROOT
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.jobs.gloo import Store
from hvdtrain.system.membership import Member, Membership

PROGRAM = ROOT / "tests" / "support" / "membership_group.py"
LIMIT_S = 120
SUPERSEDED = "PeerLost"
numbers = itertools.count(1)


class Rank:
    """A process that connects groups, and what the test says to it."""

    def __init__(self, number, framework):
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), framework],
            env=os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_GLOO_IFACE": "lo"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, *call):
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def answer(self):
        assert select.select([self.process.stdout], [], [], LIMIT_S)[0], "the rank hangs"
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def start():
    started = []

    def start(framework, count):
        ranks = [Rank(len(started) + i, framework) for i in range(count)]
        started.extend(ranks)
        answers(ranks)  # when they have loaded the framework
        return ranks

    with contextlib.ExitStack() as stack:
        yield start
        for rank in started:
            stack.callback(rank.process.wait)
            rank.process.kill()


def connect(ranks, present=None):
    """Let the ranks connect, or those that are `present`; their answers are awaited elsewhere."""
    members = tuple(Member(rank.number, "host", rank.number, "127.0.0.1", 0) for rank in ranks)
    store = Store("127.0.0.1")
    membership = Membership(next(numbers), members, {}, ("127.0.0.1", store.port))
    for position, rank in enumerate(ranks):
        if rank in (present or ranks):
            rank.call("connect", membership, position)
    return membership, store


def answers(ranks, *call):
    for rank in ranks if call else ():
        rank.call(*call)
    return [rank.answer() for rank in ranks]


def check(ranks):
    """Connect the ranks, and let them sum."""
    connect(ranks)
    assert answers(ranks) == [0.0] * len(ranks)
    assert answers(ranks, "sum", 3.0) == [[3.0 * len(ranks), 3.0 * len(ranks), 3.0]] * len(ranks)


def give_up(ranks, membership, store):
    """Tell the ranks of a newer membership while they connect; they leave this one, where it was connected."""
    store.close()
    for rank in ranks:
        rank.call("superseded", membership.number + 1)
    connected = [rank for rank, answer in zip(ranks, answers(ranks), strict=True) if answer != SUPERSEDED]
    assert answers(connected, "leave") == [None] * len(connected)
    return connected


def fail(ranks):
    """Let the ranks that wait in a sum leave it."""
    for rank in ranks:
        rank.call("abort")
    assert all(isinstance(error, str) for error in answers(ranks))
    assert answers(ranks, "leave") == [None] * len(ranks)


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_ranks_connect_again_without_those_that_are_killed_stopped_or_absent(framework, start):
    ranks = start(framework, 4)
    connecting = connect(ranks, present=ranks[:3])
    time.sleep(0.2)  # so that some have connected
    assert not give_up(ranks[:3], *connecting), "the last one never came"

    check(ranks)
    killed = ranks.pop(1)
    for rank in ranks:
        rank.call("sum", 1.0)
    killed.process.kill()
    fail(ranks)

    connecting = connect(ranks)
    time.sleep(0.05)
    ranks.pop(1).process.send_signal(signal.SIGSTOP)
    give_up(ranks, *connecting)

    check(ranks)
    ranks.pop(0).process.send_signal(signal.SIGSTOP)
    ranks[0].call("sum", 1.0)
    time.sleep(0.2)
    assert not select.select([ranks[0].process.stdout], [], [], 0)[0], "it waits for the stopped one"
    fail(ranks)

    check(ranks)
    assert answers(ranks, "leave") == [None]
    ranks += start(framework, 1)
    check(ranks)
