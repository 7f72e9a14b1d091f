"""Which ranks of a job that survives train together, where they run, and when they are started again."""

from __future__ import annotations

import pytest

from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.memberships import MembershipLedger
from hvdtrain.jobs.places import QUICK_S, Place, Places
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


def test_the_first_membership_has_all_ranks_in_their_order():
    """Those that are lost before are awaited again."""
    memberships = MembershipLedger(3, 1)
    assert memberships.ready(member(2)) is memberships.ready(member(0)) is None
    assert memberships.lost(0, KILLED) is None
    assert memberships.ready(member(1)) is None
    assert (memberships.ranks, memberships.too_few) == ((), False)
    first = memberships.ready(member(0))
    assert (first.number, first.ranks, first.lost) == (1, (0, 1, 2), {})
    assert first.members[2] == member(2)


def test_members_keep_their_order_and_new_ones_come_last():
    memberships = begun()
    assert memberships.lost(3, KILLED) is None  # it is no member
    assert memberships.number == 1
    second = memberships.lost(0, KILLED)
    assert (second.number, second.ranks, second.lost) == (2, (1, 2), {0: KILLED})
    third = memberships.ready(member(0))
    assert (third.number, third.ranks, third.lost) == (3, (1, 2, 0), {})
    assert memberships.ready(member(0)) is None  # it says so again
    assert memberships.ready(member(7)).ranks == (1, 2, 0, 7)


@pytest.mark.parametrize(("least", "losses"), [(2, (2, 1)), (1, (0, 1, 2))])
def test_the_job_ends_with_fewer_ranks_than_it_may_have(least, losses):
    memberships = begun(3, least)
    for rank in losses[:-1]:
        assert memberships.lost(rank, "") and not memberships.too_few
    assert memberships.lost(losses[-1], "") is None
    assert memberships.too_few


def test_after_a_rank_has_ended_well_no_rank_joins_and_those_left_go_on():
    memberships = begun()
    memberships.has_finished(1)
    assert memberships.ready(member(4)) is None
    assert memberships.lost(2, KILLED).ranks == (0,)
    assert memberships.lost(0, "") is None
    assert not memberships.too_few


def test_the_first_rank_ends_alone_where_the_others_have_ended():
    memberships = begun()
    memberships.has_finished(1)
    left = memberships.only(0)
    assert (left.number, left.ranks, left.lost) == (2, (0,), {})
    assert memberships.only(2) is None


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
    assert [places.layout(rank) for rank in range(3)] == [(2, 0, 2), (2, 0, 1), (1, 1, 2)]


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
