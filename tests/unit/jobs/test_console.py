"""What ranks print, as the launcher shows it: completely to a slow reader, and not to one that has stopped."""

import asyncio
import os
import resource
import select
import threading
import time
from subprocess import PIPE

import pytest

from hvdtrain.jobs import agents, console
from hvdtrain.jobs.agents import RankConnection, RankOutput, conflict_of
from hvdtrain.jobs.console import Console, Sink
from hvdtrain.jobs.job_processes import LauncherProcess
from hvdtrain.jobs.protocol import FRAME, Hello
from hvdtrain.system.run_end import Failure

LINE = b"x" * 999 + b"\n"


async def write_lines(sink, file, count):
    for _ in range(count):
        sink.write(file, LINE)
        while sink.waits:
            await asyncio.sleep(0.01)


def test_a_slow_reader_gets_everything(monkeypatch):
    monkeypatch.setattr(console, "QUEUE_BYTES", 100_000)
    reading, writing = os.pipe()
    received = []

    def read():
        while data := os.read(reading, 1 << 14):
            received.append(data)
            time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    said = []
    sink = Sink("standard output", said.append)

    asyncio.run(write_lines(sink, writing, 1000))
    sink.flush()
    os.close(writing)
    reader.join(30)
    assert (b"".join(received), said) == (LINE * 1000, [])


def test_what_a_reader_that_has_stopped_does_not_take_is_counted(monkeypatch):
    for name, value in (("QUEUE_BYTES", 100_000), ("STALLED_S", 0.2), ("FLUSH_S", 0.2)):
        monkeypatch.setattr(console, name, value)
    reading, writing = os.pipe()
    said = []
    sink = Sink("standard output", said.append)

    asyncio.run(asyncio.wait_for(write_lines(sink, writing, 300), 30))
    sink.flush()
    drained = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reading, 1 << 16), b"")], daemon=True)
    drained.start()
    while sink.full:
        time.sleep(0.01)
    sink.write(writing, LINE)
    assert "lines for standard output are lost, as nothing was read" in said[0]
    sink.flush()
    os.close(writing)


def test_a_file_that_cannot_be_opened_keeps_nobody(monkeypatch, tmp_path):
    """As on a file server that does not respond."""
    monkeypatch.setattr(console, "FLUSH_S", 0.2)
    answered, opened, waited = threading.Event(), os.open, []
    monkeypatch.setattr(console.os, "open", lambda *given: waited.append(answered.wait(30)) or opened(*given))
    sink, path = Sink("--output-dir", print), tmp_path / "rank-0.stdout"
    sink.write(path, LINE)
    sink.flush()
    assert not waited
    answered.set()
    sink.write(path, LINE)
    monkeypatch.setattr(console, "FLUSH_S", 10)
    sink.flush()
    assert path.read_bytes() == 2 * LINE


@pytest.mark.parametrize("files", [0, 1100])
def test_named_pipes_as_files(tmp_path, files):
    """One that nobody reads is an error; one with a reader gets everything, also of a launcher with many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < files + 100:
        pytest.skip(f"at most {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files + 100), hard))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(files)]
    try:
        _write_named_pipes(tmp_path)
    finally:
        for file in others:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _write_named_pipes(tmp_path):
    said = []
    sink, unread, read = Sink("--output-dir", said.append), tmp_path / "unread", tmp_path / "read"
    os.mkfifo(unread)
    os.mkfifo(read)
    reading = os.open(read, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    for path in (unread, read):
        for _ in range(500):
            sink.write(path, LINE)
    ready = select.poll()
    ready.register(reading, select.POLLIN)
    data = b""
    while len(data) < 500 * len(LINE) and ready.poll(10_000) and (part := os.read(reading, 1 << 16)):
        data += part
    os.close(reading)
    assert data == 500 * LINE
    assert said == [f"{unread} cannot be written (No such device or address); the job continues without it"]


class RecordingConsole:
    """Stores what is printed."""

    output_dir = None
    waits = False

    def __init__(self) -> None:
        self.printed = b""

    print_lines, room = Console.print_lines, Console.room

    def print(self, _: str, data: bytes) -> None:
        self.printed += data


def test_a_line_without_an_end_is_printed_in_parts(monkeypatch):
    """A rank that prints for ever without a newline does not fill the launcher's memory."""
    monkeypatch.setattr(agents, "MAX_LINE_BYTES", 10)
    console = RecordingConsole()
    rank = RankOutput(3, console)
    for _ in range(6):
        rank.write("stdout", b"....")
    assert console.printed == b"[3] " + 12 * b"." + b"\n" + b"[3] " + 12 * b"." + b"\n"
    rank.write("stdout", b"one\ntwo")
    rank.close()
    assert console.printed.endswith(b"[3] one\n[3] two\n")


LINES = [
    ([b"one\ntwo\r\n\nthree"], b"one|two||three"),
    ([b"\r 10%\r 20%", b"\r 30%\n"], b" 10%| 20%| 30%"),
    ([b"10%\r", b"20%\r", b"\nend\n"], b"10%|20%|end"),
    ([b"10%\r", b"\n", b"\r\n", b"end"], b"10%||end"),
    ([b"a\n\r 0%\r100%\n", b"\rb\r"], b"a| 0%|100%|b"),
    ([b"\r"], b""),
]


@pytest.mark.parametrize(("parts", "printed"), LINES)
def test_a_line_also_ends_where_a_progress_bar_goes_back_to_its_beginning(parts, printed):
    console = RecordingConsole()
    rank = RankOutput(3, console)
    for part in parts:
        rank.write("stderr", part)
    rank.close()
    assert console.printed == b"".join(b"[3] " + line + b"\n" for line in printed.split(b"|") if printed)


def test_progress_is_printed_while_it_runs_and_does_not_fill_the_report_of_a_failure():
    console = RecordingConsole()
    rank = RankOutput(3, console)
    for number in range(3):
        rank.write("stderr", b"\r%d%%" % number)
    assert console.printed == b"[3] 0%\n[3] 1%\n"
    rank.write("stderr", b"x" * 150_000)
    rank.close()
    report = Failure(rank=3, status=1, last_lines=tuple(rank.tail)).message(False)
    assert "2%xx" in report and len(report) < 2000
    assert len(str(Failure.of_exception(ValueError("x" * 150_000)))) < 5000


def test_a_launcher_s_lines_of_any_length_are_printed():
    """As those of a rank. Needs a process, whose output a stream of asyncio reads."""

    async def check(console):
        command = "sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; echo; echo why >&2"
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        launcher = LauncherProcess(process, "mpirun", None)
        assert await launcher.show_output(console, lambda: False) == 0
        return launcher.last_lines

    console = RecordingConsole()
    assert "why" in asyncio.run(check(console))
    assert console.printed.count(b"x") == 200_000 and b"[mpirun] why\n" in console.printed


@pytest.mark.parametrize("program_ends", [True, False], ids=["its end", "that of its agent"])
def test_a_console_holds_up_a_program_until_it_has_ended_and_the_rest_is_awaited(program_ends):
    """What arrives after the end is printed at once; where no end of it comes, it is read no more after a while."""

    async def check():
        console, reader = RecordingConsole(), asyncio.StreamReader()
        console.waits = True
        rank = RankOutput(0, console)
        for data in (b"one\n", b"two\n", b"three\n"):
            reader.feed_data(FRAME.pack(0, len(data)) + data)
        reading = asyncio.create_task(rank.read(reader))
        await asyncio.sleep(0.1)
        assert console.printed == b"[0] one\n"
        if program_ends:
            rank.hurry()
        await rank.end(0.2)
        assert console.printed == b"[0] one\n[0] two\n[0] three\n"
        assert await asyncio.wait([reading], timeout=5) and reading.cancelled()

    asyncio.run(check())


HERE = ("gpu1", "boot a", 0)
UNKNOWN = ("gpu1", "", 0)


@pytest.mark.parametrize(
    ("places", "remedy"),
    [
        ([HERE, ("gpu1", "boot a", 1), ("gpu2", "boot b", 0)], ""),
        ([HERE, ("gpu1", "boot b", 0)], ""),  # hosts of the same name, or containers
        ([HERE, ("node2", "boot a", 0)], ""),  # two nodes of Slurm on one host
        ([UNKNOWN, UNKNOWN], ""),  # where the kernel does not tell hosts apart
        ([HERE, ("gpu2", "boot b", 0), ("gpu1", "boot a", 1), ("gpu2", "boot b", 0)], "gpu2:2"),
        ([HERE, ("gpu2", "boot b", 0), HERE, HERE], "gpu1:3"),
    ],
)
def test_one_host_under_several_names_is_rejected(places, remedy):
    """Its ranks would use the same GPU."""
    ranks = {}
    for number, (host, place, local_rank) in enumerate(places):
        hello = Hello(number, len(places), local_rank, host, place)
        ranks[number] = RankConnection(hello, None, RecordingConsole())
    conflict = conflict_of(ranks)
    if remedy:
        assert conflict.at_start and conflict.remedy.endswith(f" -H {remedy}")
    else:
        assert conflict is None
