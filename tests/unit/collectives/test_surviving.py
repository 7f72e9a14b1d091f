"""A group whose members are lost and replaced: what it does with each news of the launcher, and without them."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from hvdtrain.collectives import surviving
from hvdtrain.collectives.groups import by_rank
from hvdtrain.collectives.surviving import RanksChanged, RanksJoin, SurvivingGroup, leave_if_agreed
from hvdtrain.errors import HvdtrainError, PeerLost, TrainingError, UserError
from hvdtrain.jobs import protocol
from hvdtrain.system import agent_pipe, membership, rank_info
from hvdtrain.system.agent_pipe import FINISHED, HEARD, READY, TRAINS, WAITS, Reached
from hvdtrain.system.membership import Member, Membership

PLACE = 1
"""The rank of the group that is tested."""
KILLED = "was killed by SIGKILL"


def made(number, *ranks, lost=None):
    return Membership(number, tuple(Member(rank, f"node{rank}", 0, "", 0) for rank in ranks), lost or {})


class Inner:
    """A group of one membership that computes nothing. error: of each collective; BLOCKS for one that waits."""

    controller, communicate_s = "", 0.5

    def __init__(self, of: Membership, rank: int, error=None) -> None:
        self.of, self.rank, self.size, self.local_rank, self.error = of, rank, len(of.members), 0, error
        self.done: list[str] = []
        self.aborted = threading.Event()

    def gather(self, value):
        if self.error == BLOCKS:
            assert self.aborted.wait(20), "no other thread has freed it"
            raise PeerLost("cut off")
        if self.error:
            raise self.error
        return [value] * self.size

    def sum(self, values):
        return self.gather(values)[0] * self.size

    def close(self):
        self.done.append("close")

    def abort(self):
        self.done.append("abort")
        self.aborted.set()

    def disconnect(self):
        self.done.append("disconnect")


BLOCKS = "blocks"


class Launcher:
    """The agent's ends of the pipes, and what connects: by default each membership at once."""

    def __init__(self, monkeypatch) -> None:
        self._pipe = agent_pipe.AgentPipe()
        monkeypatch.setenv(membership.VARIABLE, "1")
        monkeypatch.setenv(agent_pipe.VARIABLE, self._pipe.variable)
        for name, value in zip(rank_info.VARIABLES[rank_info.LAUNCH], (PLACE, 3, 0), strict=True):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(surviving, "ASK_AGAIN_S", 0.05)
        self.connected: list[Inner] = []
        self.error = None
        self.on_connect = lambda of, gives_up: None
        self.group = SurvivingGroup(self._connect)

    def tell(self, *memberships):
        for one in memberships:
            self._pipe.send(json.dumps(one).encode())

    def said(self):
        return [protocol.parse(message) for message in self._pipe.receive()]

    def end(self):
        self._pipe.close()

    def _connect(self, of, position, gives_up):
        self.on_connect(of, gives_up)
        self.connected.append(Inner(of, position, self.error))
        return self.connected[-1]


@pytest.fixture
def launcher(monkeypatch):
    return Launcher(monkeypatch)


@pytest.fixture
def joined(launcher):
    """After it has joined the first membership, of three ranks."""
    launcher.tell(made(1, 0, 1, 2))
    launcher.group.join()
    return launcher


def renewed(group, change):
    """What changes by it."""
    before = group.membership
    group.renew(change)
    return group.change_since(before)


def wait_until(is_so):
    clock = threading.Event()
    for _ in range(2000):
        if is_so():
            return
        clock.wait(0.01)
    raise AssertionError("it never happens")


def test_it_says_that_it_is_ready_and_joins(launcher):
    group = launcher.group
    assert (group.rank, group.size, group.ranks, group.membership) == (0, 1, (PLACE,), None), "a process alone"
    assert group.gather("alone") == ["alone"]
    leave_if_agreed(group)
    launcher.tell(made(1, 0, 1, 2))
    group.join()
    said = []
    wait_until(lambda: said.extend(launcher.said()) or len(said) == 2)
    assert set(said) == {Reached(HEARD, 1), Reached(READY, 0)}  # of two threads, in any order
    group.trains()
    assert launcher.said() == [Reached(TRAINS, 1)]
    assert (group.rank, group.size, group.ranks) == (1, 3, (0, 1, 2))
    before = group.exchanges
    assert group.sum(np.ones(2)).tolist() == [3, 3]
    assert group.exchanges == before + 1


def test_a_process_makes_one_run(launcher):
    with pytest.raises(UserError, match="makes one run; start a job for each run"):
        SurvivingGroup(launcher._connect)


def test_a_rank_that_joins_asks_who_runs_until_it_trains_and_acknowledges_each_time(launcher):
    """It acknowledges a membership that it knows as well; others learn of a loss once."""
    launcher.tell(made(1, 0, 1, 2, lost={3: KILLED}))
    launcher.group.join(0.02)
    said = []
    wait_until(lambda: said.extend(launcher.said()) or Reached(WAITS, 1) in said)
    launcher.tell(made(1, 0, 1, 2, lost={3: KILLED}))
    wait_until(lambda: said.extend(launcher.said()) or said.count(Reached(HEARD, 1)) == 2)
    launcher.group.trains()
    wait_until(lambda: not any(thread.name == "joining" for thread in threading.enumerate()))
    assert launcher.group.gather("a") == ["a"] * 3
    launcher.tell(made(2, 0, 1))
    assert renewed(launcher.group, RanksJoin()).lost == {}


@pytest.mark.parametrize("waits", [True, False])
def test_a_collective_is_cut_off_when_a_rank_is_lost_and_none_begins_after_it(waits, joined):
    group = joined.group
    if waits:
        joined.connected[0].error = BLOCKS
        threading.Timer(0.05, joined.tell, [made(2, 1, 2, lost={0: KILLED})]).start()
    else:
        joined.tell(made(2, 1, 2, lost={0: KILLED}))
        wait_until(lambda: group.known_membership == 2 and joined.connected[0].aborted.is_set())
    with pytest.raises(RanksChanged) as cut:
        group.gather(None)
    assert waits or group.exchanges == 0
    change = renewed(group, cut.value)
    assert (change.lost, change.joined, group.rank, group.ranks) == ({0: KILLED}, (), 0, (1, 2))
    assert by_rank(group, ["a", "b"]) == [None, "a", "b"]
    assert joined.connected[0].done[-2:] == ["abort", "disconnect"]
    assert "close" not in joined.connected[0].done, "the others may wait for the lost rank"
    assert group.communicate_s == 1.0, "the time of both groups"


def test_a_rank_that_is_lost_while_the_others_connect(joined):
    group, seen = joined.group, []

    def connect(of, gives_up):
        if of.number == 2:
            seen.append(group.ranks)
            joined.tell(made(3, 1, lost={2: "its host is down"}))
            wait_until(gives_up)
            raise OSError("of a library")

    joined.on_connect = connect
    joined.tell(made(2, 1, 2, lost={0: KILLED}))
    change = renewed(group, RanksChanged())
    assert change == (made(3, 1, lost={2: "its host is down"}), {0: KILLED, 2: "its host is down"}, ())
    assert seen == [(1, 2)], "the watchdog has to know who is awaited"


def test_a_rank_that_is_lost_when_the_others_have_just_connected(joined):
    group = joined.group

    def connect(of, gives_up):
        if of.number == 2:
            joined.tell(made(3, 1, lost={2: KILLED}))
            wait_until(gives_up)

    joined.on_connect = connect
    joined.tell(made(2, 1, 2, lost={0: "first"}))
    assert renewed(group, RanksChanged()).lost == {0: "first"}, "the later loss is of the next change"
    with pytest.raises(RanksChanged) as cut:
        group.gather(None)
    assert joined.connected[1].aborted.is_set()
    assert renewed(group, cut.value) == (made(3, 1, lost={2: KILLED}), {2: KILLED}, ())


def test_a_replaced_rank_has_joined(joined):
    joined.tell(made(2, 1, 2, lost={0: KILLED}), made(3, 1, 2, 0))
    wait_until(lambda: joined.group.known_membership == 3)
    change = renewed(joined.group, RanksChanged())
    assert (change.lost, change.joined, joined.group.ranks) == ({0: KILLED}, (0,), (1, 2, 0))
    assert [inner.of.number for inner in joined.connected] == [1, 3]


def test_connections_that_break_without_a_lost_rank_are_asked_for_again(joined):
    joined.said()
    joined.connected[0].error = PeerLost("no route to host")
    with pytest.raises(RanksChanged) as broken:
        joined.group.gather(None)

    def answer():
        said = []
        wait_until(lambda: said.extend(joined.said()) or said)
        assert set(said) == {Reached(READY, 1)}
        joined.tell(made(2, 0, 1, 2))

    answering = threading.Thread(target=answer)
    answering.start()
    assert renewed(joined.group, broken.value) == (made(2, 0, 1, 2), {}, ())
    answering.join()


def test_without_a_launcher_it_ends(joined):
    joined.end()
    with pytest.raises(TrainingError, match="the launcher does not answer"):
        joined.group.renew(RanksChanged("its connection broke"))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TypeError("cannot be sent"), TypeError),
        (TrainingError("other places"), TrainingError),
        (UserError("options"), UserError),
        (RuntimeError("Horovod has been shut down"), RanksChanged),
    ],
)
def test_an_error_of_a_library_is_a_change_of_ranks_and_a_mistake_is_none(error, raised, joined):
    joined.connected[0].error = error
    with pytest.raises(raised, match=str(error)):
        joined.group.gather(None)


def test_ranks_that_join_are_awaited_when_all_know_of_them(joined):
    group = joined.group
    joined.tell(made(2, 0, 1, 2, 3))
    wait_until(lambda: group.known_membership == 2)
    leave_if_agreed(group)  # others do not know it yet
    assert group.gather(None) == [None] * 3
    group.agreed_membership = 2
    with pytest.raises(RanksJoin) as change:
        leave_if_agreed(group)
    assert renewed(group, change.value).joined == (3,)
    assert joined.connected[0].done[0] == "close", "all leave it in order"
    leave_if_agreed(group)


def test_while_a_job_starts_connecting_has_a_limit(launcher):
    launcher.on_connect = lambda of, gives_up: wait_until(gives_up) or (_ for _ in ()).throw(OSError("no route"))
    launcher.group.connect_limit_s = 0.05
    launcher.tell(made(1, 0, 1, 2))
    with pytest.raises(TrainingError, match=r"3 ranks cannot be connected within 0.05 s \(no route\)"):
        launcher.group.join()


def refuse(of, gives_up):
    raise UserError("no such interface")


@pytest.mark.parametrize(
    ("after", "on_connect", "message"),
    [(made(2, 1, lost={0: KILLED}), refuse, "no such interface"), (made(2, 0, 2), None, "taken this rank out")],
)
def test_options_that_cannot_connect_and_leaving_the_job_end_it(after, on_connect, message, joined):
    joined.on_connect = on_connect
    joined.tell(after)
    with pytest.raises(HvdtrainError, match=message):
        joined.group.renew(RanksChanged())


def test_closing_waits_for_all_members(joined):
    joined.said()
    joined.group.close()
    assert (joined.group.exchanges, joined.connected[0].done) == (1, ["close"])
    assert joined.said() == [Reached(FINISHED, 1)]
    joined.connected[0].error = PeerLost("lost")
    with pytest.raises(RanksChanged):  # the result may not be written
        joined.group.close()
