"""The newest records of a metrics.jsonl, read from its end, so that long runs are listed as fast as short ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hvdtrain.views.monitor.content import last_bytes

BLOCK_BYTES = 1 << 14
"""What is read first; it holds some fifty records."""
MOST_BYTES = 1 << 20
"""What is read at most: an evaluation that is further from the end is not found."""
KINDS = ("train", "test")


def last_records(path: Path) -> dict[str, dict[str, Any]]:
    """The newest record of each kind, `train` and `test`; none of a kind that is not near the end of the file."""
    size = BLOCK_BYTES
    while True:
        content = last_bytes(path, size)
        found = {kind: record for kind in KINDS if (record := _newest(content, kind))}
        if len(found) == len(KINDS) or len(content) < size or size >= MOST_BYTES:
            return found
        size *= 8


def _newest(content: bytes, kind: str) -> dict[str, Any] | None:
    """The newest record of this kind."""
    mark, end = f'"kind": "{kind}"'.encode(), len(content)
    while (at := content.rfind(mark, 0, end)) >= 0:
        begin, stop = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at)
        try:
            record = json.loads(content[begin : stop if stop >= 0 else len(content)])
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and record.get("kind") == kind:
            return record
        end = begin  # not `at`: a line with the mark many times would be parsed as often
    return None
