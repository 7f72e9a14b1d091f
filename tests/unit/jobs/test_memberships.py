"""Which ranks of a job that survives train together."""

from __future__ import annotations

import pytest

from hvdtrain.jobs.memberships import Memberships
from hvdtrain.system.membership import Member


def member(rank):
    return Member(rank, f"node{rank}", 0, f"10.0.0.{rank}", 5000 + rank)


@pytest.fixture
def started():
    """Memberships after the first one, of three ranks."""
    memberships = Memberships(3, 1)
    for rank in (2, 0, 1):
        memberships.ready(member(rank))
    return memberships


def test_the_first_membership_has_all_ranks_in_their_order():
    memberships = Memberships(3, 1)
    assert memberships.ready(member(2)) is None
    assert memberships.ready(member(0)) is None
    assert memberships.ranks == ()
    first = memberships.ready(member(1))
    assert (first.number, first.ranks, first.lost) == (1, (0, 1, 2), {})
    assert first.members[2] == member(2)


def test_a_rank_that_was_lost_before_the_first_membership_is_awaited_again():
    memberships = Memberships(2, 1)
    memberships.ready(member(0))
    assert memberships.lost(0, "was killed by SIGKILL") is None
    assert not memberships.too_few
    assert memberships.ready(member(1)) is None
    assert memberships.ready(member(0)).ranks == (0, 1)


def test_members_keep_their_order_and_new_ones_come_last(started):
    second = started.lost(0, "was killed by SIGKILL")
    assert (second.number, second.ranks, second.lost) == (2, (1, 2), {0: "was killed by SIGKILL"})
    third = started.ready(member(0))
    assert (third.number, third.ranks, third.lost) == (3, (1, 2, 0), {})
    assert started.ready(member(0)) is None  # it says so again
    assert started.ready(member(7)).ranks == (1, 2, 0, 7)


def test_a_rank_that_is_no_member_changes_nothing(started):
    assert started.lost(3, "was killed by SIGKILL") is None
    assert started.number == 1


def test_the_job_ends_with_fewer_ranks_than_it_may_have():
    memberships = Memberships(3, 2)
    for rank in range(3):
        memberships.ready(member(rank))
    assert memberships.lost(2, "").ranks == (0, 1)
    assert not memberships.too_few
    assert memberships.lost(1, "") is None
    assert memberships.too_few


def test_the_job_ends_with_its_last_rank(started):
    for rank in (0, 1):
        assert started.lost(rank, "")
    assert started.lost(2, "") is None
    assert started.too_few


def test_after_a_rank_has_ended_well_no_rank_joins_and_those_left_go_on(started):
    started.has_finished(1)
    assert started.ready(member(4)) is None
    left = started.lost(2, "was killed by SIGKILL")
    assert left.ranks == (0,)
    assert started.lost(0, "") is None
    assert not started.too_few


def test_the_first_rank_ends_alone_where_the_others_have_ended(started):
    started.has_finished(1)
    left = started.only(0)
    assert (left.number, left.ranks, left.lost) == (2, (0,), {})
    assert started.only(2) is None
