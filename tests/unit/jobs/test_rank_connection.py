"""What a rank prints, as the launcher shows it."""

from __future__ import annotations

import pytest

from hvdtrain.jobs import rank_connection
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.rank_connection import RankConnection, RankOutput, conflict_of


class RecordingConsole:
    """Stores what is printed."""

    output_dir = None

    def __init__(self) -> None:
        self.printed = b""

    print_lines = Console.print_lines

    def print(self, _: str, data: bytes) -> None:
        self.printed += data


def test_a_line_without_an_end_is_printed_in_parts(monkeypatch):
    """A rank that prints for ever without a newline does not fill the launcher's memory."""
    monkeypatch.setattr(rank_connection, "MAX_LINE_BYTES", 10)
    console = RecordingConsole()
    rank = RankOutput(3, console)
    for _ in range(6):
        rank.write("stdout", b"....")
    assert console.printed == b"[3] " + 12 * b"." + b"\n" + b"[3] " + 12 * b"." + b"\n"
    rank.write("stdout", b"one\ntwo")
    rank.close()
    assert console.printed.endswith(b"[3] one\n[3] two\n")


HERE = ("gpu1", "boot a", 0)


@pytest.mark.parametrize(
    ("others", "remedy"),
    [
        ([("gpu1", "boot a", 1), ("gpu2", "boot b", 0)], ""),
        ([("gpu1", "boot b", 0)], ""),  # hosts of the same name, or containers
        ([("node2", "boot a", 0)], ""),  # two nodes of Slurm on one host
        ([("gpu1", "boot a", 0)], "gpu1:2"),
        ([("gpu2", "boot b", 0), ("gpu1", "boot a", 1), ("gpu2", "boot b", 0)], "gpu2:2"),
        ([("gpu2", "boot b", 0), ("gpu1", "boot a", 0), ("gpu1", "boot a", 0)], "gpu1:3"),
    ],
)
def test_one_host_under_several_names_is_rejected(others, remedy):
    """Its ranks would use the same GPU."""
    ranks = {}
    for number, (host, place, local_rank) in enumerate([HERE, *others]):
        hello = {"rank": number, "host": host, "place": place, "local_rank": local_rank, "versions": {}}
        ranks[number] = RankConnection(hello, None, RecordingConsole())
    conflict = conflict_of(ranks)
    if remedy:
        assert conflict.at_start and conflict.remedy.endswith(f" -H {remedy}")
    else:
        assert conflict is None


def test_where_the_kernel_does_not_tell_hosts_apart_nothing_is_rejected():
    hello = {"host": "gpu1", "place": "", "local_rank": 0, "versions": {}}
    ranks = {number: RankConnection({"rank": number, **hello}, None, RecordingConsole()) for number in (0, 1)}
    assert conflict_of(ranks) is None
