"""Which ranks of a job that survives train together, where they run, and when they are started again.

`jobs/test_survive_launch.py` has the memberships of lost ranks and of those that join.
"""

from __future__ import annotations

import asyncio

import pytest

from hvdtrain.jobs import host_changes, hosts
from hvdtrain.jobs.hosts import Host, read_hostfile
from hvdtrain.jobs.memberships import QUICK_S, MembershipLedger, Place, Places
from hvdtrain.system.agent_pipe import FINISHED, HEARD, TRAINS, Reached
from hvdtrain.system.membership import Member

KILLED = "was killed by SIGKILL"


def member(rank):
    return Member(rank, f"node{rank}", 0, f"10.0.0.{rank}", 5000 + rank)


def begun(size=3, least=1):
    """The ledger after the first membership."""
    memberships = MembershipLedger(size, least)
    for rank in reversed(range(size)):
        memberships.ready(member(rank))
    return memberships


def trained(size=3):
    """The ledger when all train in the first membership."""
    memberships = begun(size)
    for rank in range(size):
        memberships.reached(rank, Reached(TRAINS, 1))
    return memberships


def test_ranks_that_are_lost_before_the_first_membership_are_awaited_again():
    memberships = MembershipLedger(3, 1)
    assert memberships.ready(member(2)) is memberships.ready(member(0)) is memberships.lost(0, KILLED) is None
    assert memberships.ready(member(1)) is None
    assert (memberships.ranks, memberships.too_few) == ((), False)
    first = memberships.ready(member(0))
    assert (first.number, first.ranks, first.lost) == (1, (0, 1, 2), {})


def test_a_loss_of_no_member_and_a_member_that_is_ready_again_change_nothing():
    memberships = begun()
    assert memberships.lost(3, KILLED) is memberships.ready(member(0)) is None
    assert memberships.number == 1


def test_after_a_rank_has_ended_well_no_rank_joins_and_those_left_go_on():
    """Those that wait for it, or for a rank that is lost then, connect without it; a rank that joins is let go."""
    memberships = trained()
    memberships.ready(member(3))
    memberships.lost(2, KILLED)
    memberships.reached(1, Reached(FINISHED, 1))
    memberships.has_finished(1)
    assert memberships.ready(member(4)) is None
    assert [rank for rank in range(4) if memberships.may_train(rank)] == [0, 1]
    left = memberships.left()
    assert (left.number, left.ranks, left.lost) == (4, (0,), {})
    assert not memberships.too_few


def test_ranks_that_completed_the_training_with_another_are_no_newcomers():
    """Though what they say of it comes later."""
    memberships = begun()
    memberships.reached(1, Reached(FINISHED, 1))
    memberships.has_finished(1)
    assert all(memberships.may_train(rank) for rank in range(3))
    assert memberships.left() is None, "none waits for another"


def test_members_that_do_not_run_are_found_when_one_has_waited_for_long_twice():
    """The first that asks asks again; the others' questions in between do not shorten the time for an answer."""
    memberships = trained(2)
    for rank in (2, 3):
        memberships.ready(member(rank))
    for rank in (0, 1, 3):
        memberships.reached(rank, Reached(HEARD, 3))
    assert memberships.silent(3) == {2}
    for rank in (0, 2, 3):
        memberships.reached(rank, Reached(HEARD, 3))
    assert memberships.silent(2) == set()
    assert memberships.silent(3) == {1}
    memberships.reached(3, Reached(TRAINS, 3))
    assert memberships.silent(2) == {0, 1, 2}


def test_before_the_first_membership_the_rank_that_waits_longest_says_for_whom():
    memberships = MembershipLedger(3, 1)
    memberships.ready(member(2))
    memberships.ready(member(0))
    assert (memberships.awaited_by(2), memberships.awaited_by(0)) == ({1}, set())
    memberships.ready(member(1))
    assert memberships.awaited_by(2) == set()


def changes(tmp_path, monkeypatch, *texts):
    """What `watch` says of a file that has these texts one after the other; a second text is there for long."""
    monkeypatch.setattr(host_changes, "INTERVAL_S", 0.01)
    monkeypatch.setattr(host_changes, "MISSING_S", 0.2)
    path, said = tmp_path / "hosts", []
    path.write_text("a slots=2\nb slots=1\n")

    async def write():
        watching = asyncio.create_task(host_changes.watch(path, read_hostfile(path), said.append, said.append))
        for text, seconds in texts:
            if text is None:
                path.unlink()
            else:  # never half of it
                (tmp_path / "new").write_text(text)
                (tmp_path / "new").rename(path)
            await asyncio.sleep(seconds)
        watching.cancel()

    asyncio.run(write())
    return said


@pytest.mark.parametrize("text", ["", "\0 slots = = " * 500, "# nothing", "a slots=2\na slots=2\n", None, "\xff"])
def test_a_list_of_hosts_that_is_invalid_for_a_moment_changes_nothing_and_is_said_once(text, tmp_path, monkeypatch):
    said = changes(tmp_path, monkeypatch, (text, 0.5), ("b slots=1\na slots=2\n", 0.2))
    assert len(said) == 2 and "the hosts stay as they were" in said[0] and len(said[0]) < 400
    assert said[1].endswith("is valid again")


@pytest.mark.parametrize("moment", ["a slots=2\n", "a slots=1\nb slots=1\n"])
def test_slots_are_gone_only_when_they_are_missing_for_long(moment, tmp_path, monkeypatch):
    whole = "a slots=2\nb slots=1\n"
    assert changes(tmp_path, monkeypatch, (moment, 0.05), (whole, 0.3)) == []
    assert changes(tmp_path, monkeypatch, (moment, 0.6))[-1] == tuple(hosts.read_hostfile(tmp_path / "hosts"))
    more = changes(tmp_path, monkeypatch, ("a slots=3\nb slots=1\nc slots=1\n", 0.1))
    assert more == [(Host("a", 3), Host("b", 1), Host("c", 1))]


HOSTS = (Host("node1", 2), Host("node2", 2))


def taken(ranks, hosts=HOSTS):
    """Places after the first ranks have got theirs."""
    places = Places(hosts, ranks)
    places.take(0)
    return places


def test_hosts_are_filled_in_their_order():
    places = Places(HOSTS, 3)
    assert places.take(0) == [Place(0, "node1", 0), Place(1, "node1", 1), Place(2, "node2", 0)]
    assert places.take(0) == []
    assert [places.local_size(rank) for rank in range(3)] == [2, 2, 1]


def test_a_lost_rank_starts_again_where_it_was_or_where_a_slot_is_free():
    """A host that does not answer comes last, until it answers again; an excluded one is not used again."""
    places = taken(3)
    assert places.release(0, 10) == 0
    assert places.take(10) == [Place(0, "node1", 0)]
    for rank in (0, 1):
        places.release(rank, 100, answers=False)
    # One slot of node2 is free; for the other rank only the host remains that may come back.
    assert places.take(100) == [Place(0, "node2", 1), Place(1, "node1", 0)]
    places.answers("node1")
    places.release(0, 300)
    assert places.take(300) == [Place(0, "node2", 1)]  # where it was
    places.exclude("node1")
    places.release(1, 500)
    assert places.take(500) == []
    places.release(2, 500)
    assert [place.host for place in places.take(500)] == ["node2"]


def test_pauses_grow_while_a_rank_dies_soon_after_its_start():
    places, now, pauses = taken(1), 0.0, []
    for _ in range(9):
        pauses.append(places.release(0, now + 1))
        assert (places.next_due(now + 1) or 0) == pauses[-1]
        now += 1 + pauses[-1]
        places.take(now)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert places.release(0, now + QUICK_S) == 0, "it has lived long"


def test_a_job_grows_where_there_are_slots_and_ranks_leave_with_them():
    places = taken(2)
    places.grow(6)
    assert places.take(1) == [Place(2, "node2", 0), Place(3, "node2", 1)]
    assert places.update((*HOSTS, Host("node3", 1))) == []
    assert places.take(2) == [Place(4, "node3", 0)]
    assert [place.rank for place in taken(4).update((Host("node1", 1), Host("node3", 4)))] == [1, 3, 2]


def test_spare_slots_of_an_allocation_take_lost_ranks():
    """srun spreads the ranks over the nodes; a node that is lost never comes back into the allocation."""
    places = taken(2, (Host("node1", 1), Host("node2", 1)))
    places.add((Host("node1", 2), Host("node2", 2)))
    assert places.take(1) == []
    places.release(1, 5, answers=False)
    assert places.take(5) == [Place(1, "node1", 1)]
