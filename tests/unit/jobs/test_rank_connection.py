"""What a rank prints, as the launcher shows it."""

from __future__ import annotations

from hvdtrain.jobs import rank_connection
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.rank_connection import RankOutput


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
