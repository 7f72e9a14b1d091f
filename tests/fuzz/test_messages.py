"""What other processes write: messages of ranks and launcher, the doctor's probes, and Horovod's timelines."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from support.timeline_steps import step
from support.traces import Trace

from fuzz.inputs import TOO_DEEP, json_like, mutated
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.collectives.encoding import decode, encode
from hvdtrain.doctor import subprocesses
from hvdtrain.interfaces import Position
from hvdtrain.jobs import protocol
from hvdtrain.runs.timeline.horovod_events import HorovodFile, RankSteps, add_given
from hvdtrain.runs.timeline.summary import summary
from hvdtrain.runs.timeline.trace_file import trace
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import OpenedRun

MESSAGES = (
    {"challenge": "ab", "proof": "cd"},
    {"environment": {"A": "b"}, "store": ["host", 1]},
    {"signal": 15},
    {"end": True},
)


VALUES = ({"rank": 1, "a": (None, 2.5)}, np.arange(6, dtype=np.float32).reshape(2, 3), (Path("runs"), Position(1)))


@FUZZ
@given(
    mutated(tuple(map(encode, VALUES)), (b'["array", ', b'["dict", ', b'["path", ', b'"<f8"', b"[" * 2000))
    | st.binary(max_size=4096)
)
def test_ring_values(message: bytes) -> None:
    with rejects_cleanly():
        decode(message)


def handshake(ours: socket.socket) -> None:
    """As `connect` does it, which tries the next address after these errors."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        protocol.authenticate(ours, "token")


@FUZZ
@given(
    st.lists(st.sampled_from(MESSAGES).flatmap(json_like), max_size=3),
    st.sampled_from(["handshake", "receive", "arrived"]),
)
@example([TOO_DEEP[: 1 << 15]], "handshake")
@example([b"[1]"], "handshake")
@example([b'{"proof": "\\u00e9", "challenge": ""}'], "handshake")
def test_channel(lines: list[bytes], reader: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, rejects_cleanly(), contextlib.suppress(protocol.Closed):
        theirs.sendall((b"\n".join(lines) + b"\n")[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        if reader == "handshake":
            return handshake(ours)
        found = protocol.Channel(ours)
        messages = [found.receive()] if reader == "receive" else found.receive_available()
        assert all(isinstance(message, dict) for message in messages)


SAID = (
    {"failure": {"reason": "a", "option": "lr", "rank": 1, "step": None, "retry": False, "resumable": True}},
    {"run": {"folder": "/runs/a", "resumable": True, "checkpoint": ""}},
)


@FUZZ
@given(st.lists(st.sampled_from(SAID).flatmap(json_like) | st.binary(max_size=9), max_size=4))
@example([TOO_DEEP, b"[]", b'{"failure": {"reason": 1}}', b'{"run": null}'])
def test_what_a_rank_says(lines: list[bytes]) -> None:
    reading, writing, _ = agent_pipe.new_pipe()
    with os.fdopen(writing, "wb", buffering=0) as pipe, contextlib.closing(agent_pipe.Receiver(reading)) as receiver:
        pipe.write((b"\n".join(lines) + b"\n")[: 1 << 15])
        for message in receiver.receive():
            with rejects_cleanly(), contextlib.suppress(ValueError):
                said = agent_pipe.parse(message)
                assert isinstance(said, OpenedRun) or str(said) is not None


@FUZZ
@given(st.lists(json_like({"rank": 0, "seconds": 1.5}) | st.binary(max_size=5), max_size=4))
@example([TOO_DEEP, b"1", b"[]"])
def test_probe_output(parts: list[bytes]) -> None:
    text = "".join(f"[1,0]<stdout>:{subprocesses.MESSAGE_PREFIX}{part.decode(errors='replace')}\n" for part in parts)
    with rejects_cleanly():
        assert all(isinstance(found, dict) for found in subprocesses.read_messages(text))


EVENTS = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 17_000_000}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grouped_allreduce.w_1of2"}},
    {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "grouped_allreduce.w_2of2"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 6000, "pid": 1},
    {"ph": "X", "name": "1", "ts": 6500, "pid": 1, "dur": 0},
    {"ph": "E", "ts": 7000, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 7000, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 7001, "pid": 2},
    {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 7100, "pid": 1},
    {"ph": "E", "ts": 7900, "pid": 1},
    {"ph": "E", "ts": 8000, "pid": 1},
    {"ph": "E", "ts": 8001, "pid": 2},
]
RANKS = [RankSteps(rank, "host", [step(5, 0), step(6, 10)]) for rank in range(2)]


EVENT_FILES = st.lists(st.sampled_from(EVENTS).flatmap(json_like), max_size=30).map(
    lambda events: b"[" + b",".join([json.dumps(EVENTS[1]).encode(), *events]) + b"]"
)


@FUZZ
@given(
    mutated((json.dumps(EVENTS).encode(), b"[" + b",\n".join(json.dumps(one).encode() for one in EVENTS))) | EVENT_FILES
)
@example(TOO_DEEP)
@example(b"")
@example(json.dumps(EVENTS).replace('"GLOO_ALLREDUCE"', '""').encode())
def test_horovod_timeline(content: bytes) -> None:
    """Whatever Horovod's file has, the timeline is valid, and none of its spans overlap."""
    with folder_of(**{"horovod.json": content}) as folder, rejects_cleanly():
        file = HorovodFile(folder / "horovod.json")
        file.start_of_clock(5, [(0, 10**9)])
        messages = file.messages(0)
        add_given(messages, RANKS)
        written = folder / "timeline.json"
        written.write_text(json.dumps(trace(RANKS, messages, {"summary": summary(RANKS, messages)})))
        Trace(written).check()
