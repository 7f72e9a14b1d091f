"""What other processes write: messages of ranks and launcher, and the doctor's probes."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.inputs import TOO_DEEP, json_like, mutated
from fuzz.properties import FUZZ, rejects_cleanly
from hvdtrain.collectives.encoding import decode, encode
from hvdtrain.doctor import subprocesses
from hvdtrain.interfaces.learner import Position
from hvdtrain.jobs import protocol
from hvdtrain.system import agent_pipe

MESSAGES = (
    {"message": "Start", "environment": {"A": "b"}, "store": ["host", 1]},
    {"message": "Members", "membership": [1, [[0, "a", 0, "b", 1]], {"0": "c"}, ["d", 2]]},
    {"message": "End", "at_once": True},
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


@FUZZ
@given(
    st.lists(st.sampled_from(MESSAGES).flatmap(json_like), max_size=3),
    st.sampled_from(["receive", "arrived"]),
)
@example([TOO_DEEP[: 1 << 15]], "receive")
@example([b"[1]"], "receive")
def test_channel(lines: list[bytes], reader: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, rejects_cleanly(), contextlib.suppress(protocol.Closed):
        theirs.sendall((b"\n".join(lines) + b"\n")[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        found = protocol.Channel(ours)
        messages = [found.receive()] if reader == "receive" else found.receive_available()
        assert all(isinstance(message, protocol.Message) for message in messages)


SAID = (
    {"Failure": {"reason": "a", "option": "lr", "rank": 1, "step": None, "retry": False, "resumable": True}},
    {"OpenedRun": {"folder": "/runs/a", "resumable": True, "checkpoint": ""}},
)


@FUZZ
@given(st.lists(st.sampled_from(SAID).flatmap(json_like) | st.binary(max_size=9), max_size=4))
@example([TOO_DEEP, b"[]", b'{"Failure": {"reason": 1}}', b'{"OpenedRun": null}', b"{}"])
def test_what_a_rank_says(lines: list[bytes]) -> None:
    with contextlib.closing(agent_pipe.AgentPipe()) as pipe, pipe.rank_end as rank:
        for line in filter(None, lines):
            rank.send(line[: 1 << 15])
        for message in pipe.receive():
            with rejects_cleanly():
                str(protocol.parse(message))


@FUZZ
@given(st.lists(json_like({"rank": 0, "seconds": 1.5}) | st.binary(max_size=5), max_size=4))
@example([TOO_DEEP, b"1", b"[]"])
def test_probe_output(parts: list[bytes]) -> None:
    text = "".join(f"[1,0]<stdout>:{subprocesses.MESSAGE_PREFIX}{part.decode(errors='replace')}\n" for part in parts)
    with rejects_cleanly():
        assert all(isinstance(found, dict) for found in subprocesses.read_messages(text))
