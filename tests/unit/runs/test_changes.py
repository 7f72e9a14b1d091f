"""What the records of a run say of its ranks: lost, joined, handed over, audited; also where they are odd."""

import pytest

from hvdtrain.runs.changes import Changes
from hvdtrain.runs.metrics import HAPPENED, NAME, MetricsReader, MetricsWriter

HOSTS = ["node1", "node1", "node2", "node2"]


def members(writer, step, ranks, number, lost=None, joined=(), seconds=0.0, **values):
    hosts = [HOSTS[rank] for rank in ranks]
    lost = [{"rank": rank, "why": why} for rank, why in (lost or {}).items()]
    values = {"hosts": hosts, "lost": lost, "joined": list(joined), "seconds": seconds, "repeated": 0, **values}
    writer.write("members", step, epoch=step / 100, number=number, ranks=list(ranks), **values)


@pytest.fixture
def writer(tmp_path):
    writer = MetricsWriter(tmp_path)
    members(writer, 0, range(4), 1, joined=range(4))
    yield writer
    writer.close()


def read(folder):
    return Changes.of(MetricsReader(folder / NAME).read())


def texts(folder):
    return [change.text for change in read(folder).changes]


def test_a_rank_that_was_lost_and_joined_again(writer, tmp_path):
    members(writer, 420, (0, 1, 3), 2, {2: "was killed by SIGKILL"}, seconds=0.312, repeated=1)
    assert [change.text for change in read(tmp_path).lost.values()] == texts(tmp_path)
    members(writer, 455, (0, 1, 3, 2), 3, joined=[2], seconds=0.02, hosts=["node1", "node1", "node2", "node1"])
    assert texts(tmp_path) == [
        "rank 2 on node2 lost at step 420 (was killed by SIGKILL); paused 0.31 s, 1 step repeated",
        "rank 2 on node1 joined at step 455; paused 0.02 s",
    ]
    found = read(tmp_path)
    assert (found.losses, found.joins, found.lost) == (1, 1, {})
    assert found.summary == "1 rank lost, 1 rank joined, paused 0.33 s in all, 1 step repeated"


def test_a_change_during_a_change_is_both(writer, tmp_path):
    """Survivors may skip a membership: the rank that was lost in it has joined again in the next."""
    members(writer, 7, (0, 1, 2, 3), 4, {2: "was killed by SIGKILL"}, joined=[2], seconds=0.5)
    assert texts(tmp_path) == [
        "rank 2 on node2 lost at step 7 (was killed by SIGKILL); paused 0.5 s",
        "rank 2 on node2 joined at step 7; paused 0.5 s",
    ]
    members(writer, 7, (0, 1, 3), 5, {2: "was killed by SIGSEGV"})
    members(writer, 7, (0, 1), 6, {3: "no heartbeat for 30 s"})
    assert len(texts(tmp_path)) == 4 and [*read(tmp_path).lost] == [2, 3], "also several of the same step"
    members(writer, 8, (0, 1), 7, seconds=0.7, repeated=1)
    assert texts(tmp_path)[4:] == ["connections between the ranks broke at step 8; paused 0.7 s, 1 step repeated"]


def test_ranks_that_join_in_addition(writer, tmp_path):
    HOSTS.append("node3")
    members(writer, 9, range(5), 2, joined=[4])
    members(writer, 12, range(4), 3)
    HOSTS.pop()
    joined, left = read(tmp_path).changes
    assert joined.text == "rank 4 on node3 joined at step 9; paused 0 s" and joined.kind == "joined"
    assert left.text == "rank 4 on node3 lost at step 12; paused 0 s", "also where no record says why"


def test_a_job_that_was_started_again_has_all_its_ranks(writer, tmp_path):
    members(writer, 5, (0, 1), 2, {2: "was killed by SIGKILL", 3: "was killed by SIGKILL"})
    members(writer, 3, range(4), 1, joined=range(4))
    found = read(tmp_path)
    assert found.lost == {} and found.losses == 2 and found.joins == 0 and len(found.members.hosts) == 4


def test_shards_that_moved(writer, tmp_path):
    moved = [[8, 2, 0], [9, 2, 1], [10, 2, 3]]
    writer.write("shards", 5, epoch=0.1, counts=[6, 5, None, 5], moved=moved, why="rank 2 computes 2.0 times as long")
    found = read(tmp_path)
    assert found.changes[0].text == (
        "3 shards moved from rank 2 to ranks 0-1, 3 at step 5: rank 2 computes 2.0 times as long"
    )
    assert (found.moves, found.shards, found.changes[0].rank) == (3, {0: 6, 1: 5, 3: 5}, 2)


@pytest.mark.parametrize(("wrong", "text"), [(3, "rank 3 computed wrong bits"), (None, "which one is wrong")])
def test_audits(writer, tmp_path, wrong, text):
    writer.write("audit", 300, epoch=3.0, shard=5, rank=3, by=1, wrong=wrong)
    writer.write("audited", 300, epoch=3.0, audits=40, unequal=1)
    (change,) = read(tmp_path).changes
    assert "shard 5 of step 300 has other bits on rank 3 than on rank 1: " + text in change.text
    assert read(tmp_path).summary == "40 shards audited, 1 unequal"


def test_only_changes_are_read_for_who_is_there(writer, tmp_path):
    for step in range(1, 50):
        writer.write("train", step, epoch=step / 100, loss=1.0)
    members(writer, 49, (0, 1, 3), 2, {2: "was killed"})
    reader = MetricsReader(tmp_path / NAME, only=HAPPENED).read()
    assert len(reader.all()) == 2 and [*Changes.of(reader).lost] == [2]
