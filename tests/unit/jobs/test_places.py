"""Where the ranks of a job that survives run, and when they are started again."""

from __future__ import annotations

from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.places import QUICK_S, Place, Places

HOSTS = (Host("node1", 2), Host("node2", 2))


def test_hosts_are_filled_in_their_order():
    places = Places(HOSTS, 3)
    assert places.take(0) == [Place(0, "node1", 0), Place(1, "node1", 1), Place(2, "node2", 0)]
    assert places.take(0) == []
    assert [places.layout(rank) for rank in range(3)] == [(2, 0, 2), (2, 0, 1), (1, 1, 2)]


def test_more_ranks_than_slots_share_the_hosts():
    assert [place.host for place in Places(HOSTS, 5).take(0)] == ["node1"] * 4 + ["node2"]


def test_a_lost_rank_starts_again_where_it_was():
    places = Places(HOSTS, 3)
    places.take(0)
    assert places.release(0, 10) == 0
    assert places.take(10) == [Place(0, "node1", 0)]


def test_a_rank_of_a_host_that_does_not_answer_starts_where_a_slot_is_free_and_returns_when_it_has_to():
    places = Places(HOSTS, 3)
    places.take(0)
    for rank in (0, 1):
        places.release(rank, 10, answers=False)
    # One slot of node2 is free; for the other rank only the host remains that may come back.
    assert places.take(10) == [Place(0, "node2", 1), Place(1, "node1", 0)]
    places.answers("node1")
    places.release(0, 200)
    assert places.take(200) == [Place(0, "node2", 1)]  # where it was


def test_pauses_grow_while_a_rank_dies_soon_after_its_start():
    places = Places(HOSTS, 1)
    now, pauses = 0.0, []
    for _ in range(9):
        places.take(now)
        pause = places.release(0, now + 1)
        assert (places.next_due(now + 1) or 0) == pause
        pauses.append(pause)
        now += 1 + pause
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_rank_that_has_lived_long_starts_again_at_once():
    places = Places(HOSTS, 1)
    places.take(0)
    places.release(0, 1)
    places.take(1)
    assert places.release(0, 2) == 1
    places.take(3)
    assert places.release(0, 3 + QUICK_S) == 0


def test_an_excluded_host_is_not_used_again():
    places = Places(HOSTS, 2)
    places.take(0)
    places.exclude("node1")
    places.release(1, 5)
    assert places.take(5) == [Place(1, "node2", 0)]


def test_a_job_grows_where_there_are_slots():
    places = Places(HOSTS, 2)
    places.take(0)
    places.grow(6)
    assert places.take(1) == [Place(2, "node2", 0), Place(3, "node2", 1)]
    assert places.update((*HOSTS, Host("node3", 1))) == []
    assert places.take(2) == [Place(4, "node3", 0)]


def test_ranks_leave_with_their_slots():
    places = Places(HOSTS, 4)
    places.take(0)
    assert [place.rank for place in places.update((Host("node1", 1), Host("node3", 4)))] == [1, 3, 2]


def test_spare_slots_of_an_allocation_take_lost_ranks():
    """srun spreads the ranks over the nodes; a node that is lost never comes back into the allocation."""
    places = Places((Host("node1", 1), Host("node2", 1)), 2)
    places.take(0)
    places.add((Host("node1", 2), Host("node2", 2)))
    assert places.take(1) == []
    places.release(1, 5, answers=False)
    assert places.take(5) == [Place(1, "node1", 1)]
