"""Reads a timeline as strictly as the trace event format is written, and finds what overlaps or is missing."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

NS = 0.001
"""A nanosecond in microseconds, the format's unit, in which numbers are rounded."""


class TraceSpan(NamedTuple):
    """A complete event."""

    name: str
    kind: str
    begin: float
    end: float


class Trace:
    """A file in Chrome's trace event format, of complete and metadata events only. Fails for any other content."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text(), parse_constant=reject)
        assert content.keys() == {"traceEvents", "displayTimeUnit", "otherData"}
        assert content["displayTimeUnit"] in ("ms", "ns")
        self.about = content["otherData"]
        self.processes: dict[int, str] = {}
        self.names: dict[tuple[int, int], str] = {}
        self.tracks: dict[tuple[int, int], list[TraceSpan]] = defaultdict(list)
        for event in content["traceEvents"]:
            self._add(event)
        assert {pid for pid, _ in self.tracks} <= self.processes.keys()
        assert self.tracks.keys() <= self.names.keys()
        numbers = [tid for _, tid in self.names]
        assert len(set(numbers)) == len(numbers)  # Perfetto would join threads of one number
        assert not {0, *self.processes} & set(numbers)  # and takes these for something else

    def _add(self, event: dict[str, Any]) -> None:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        where = event["pid"], event["tid"]
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "M":
            kind, _, field = event["name"].partition("_")
            value = event["args"][field if field == "name" else "sort_index"]
            assert type(value) is {"name": str, "sort_index": int}[field]
            if field == "name" and kind == "process":
                self.processes[event["pid"]] = value
            elif field == "name":
                assert kind == "thread"
                self.names[where] = value
            return
        assert event["ph"] == "X"
        assert isinstance(event["cat"], str)
        for number in (event["ts"], event["dur"]):
            assert type(number) in (int, float)
            assert math.isfinite(number)
            assert 0 <= number < 1 << 53
        span = TraceSpan(event["name"], event["cat"], event["ts"], round(event["ts"] + event["dur"], 3))
        self.tracks[where].append(span)

    def main(self, rank: int) -> list[TraceSpan]:
        """The track of a rank's main thread."""
        (where,) = (where for where, name in self.names.items() if where[0] == rank and name == "main thread")
        return self.tracks.get(where, [])

    def steps(self, rank: int) -> dict[str, list[TraceSpan]]:
        """The parts of each step of a rank, by its name."""
        own = self.main(rank)
        parts = [one for one in own if one.kind == "part"]
        return {
            step.name: [part for part in parts if step.begin - NS / 2 <= part.begin < step.end - NS / 2]
            for step in own
            if step.kind == "step"
        }

    def check(self) -> None:
        """Fail if spans of a track overlap without one inside of the other, or a step is not the sum of its parts."""
        for where, spans in self.tracks.items():
            check_nested(f"{self.processes[where[0]]}, {self.names[where]}", spans)
        for rank in self.processes:
            steps = {one.name: one for one in self.main(rank) if one.kind == "step"}
            for name, parts in self.steps(rank).items():
                total = sum(part.end - part.begin for part in parts)
                length = steps[name].end - steps[name].begin
                assert abs(total - length) <= 0.02 * length, (rank, name, total, length)


def reject(name: str) -> None:
    """JSON has no NaN and no infinities, which Python reads."""
    raise ValueError(f"{name} in JSON")


def check_nested(track: str, spans: list[TraceSpan]) -> None:
    """Fail if two spans overlap, and none is inside of the other."""
    open_spans: list[TraceSpan] = []
    for span in sorted(spans, key=lambda one: (one.begin, -one.end)):
        while open_spans and open_spans[-1].end <= span.begin + NS:
            open_spans.pop()
        assert not open_spans or span.end <= open_spans[-1].end + NS, (track, open_spans[-1], span)
        open_spans.append(span)
