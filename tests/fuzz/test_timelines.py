"""Timelines that Horovod has written, which may be cut off, and have names that are not escaped."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st
from support.timeline_steps import step
from support.traces import Trace

from fuzz.inputs import TOO_DEEP, json_like, mutated
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.runs.timeline.horovod_events import HorovodFile, RankSteps, add_given
from hvdtrain.runs.timeline.summary import summary
from hvdtrain.runs.timeline.trace_file import trace

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
