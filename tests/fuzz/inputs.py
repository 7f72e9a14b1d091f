"""Inputs for the parsers: close enough to valid ones to get past the first check."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import strategies as st

BOUNDARIES = (0, 1, 127, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1,
              (1 << 64) - 1)  # fmt: skip
"""Values at and around the limits of integer types, and far beyond."""
NUMBERS = [
    (number % (1 << 8 * width)).to_bytes(width, order)
    for number in BOUNDARIES
    for width in (1, 2, 4, 8)
    for order in ("big", "little")
]
NUMBER_TEXTS = ("0", "-1", "007", "1.5", "1e999", "nan", "1_0", "٣", "99999", "65537", str(1 << 70), "9" * 5000, "")


NPY_HEADERS = st.builds(
    "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}, }}".format,
    st.sampled_from(["<f4", ">f8", "|V0", "|S3", "|u1", "|O", "<M8[s]", "", [("a", "<f4")], ("<f4", (2,)), None]),
    st.booleans(),
    st.lists(st.sampled_from(BOUNDARIES) | st.integers(-2, 12), max_size=4).map(tuple) | st.just("x"),
) | st.sampled_from(["(" * 5000, "{'descr': '|u1'}", "0j + 1", ""])


def npy(header: str, values: bytes) -> bytes:
    """An .npy file with this header, valid or not."""
    text = header.encode("latin1", "replace") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values


@st.composite
def mutated(draw: st.DrawFn, valid: tuple[bytes, ...], pieces: tuple[bytes, ...] = ()) -> bytes:
    """A valid file with up to five places overwritten, inserted, removed or truncated."""
    content = bytearray(draw(st.sampled_from(valid)))
    piece = st.binary(max_size=8) | st.sampled_from([*NUMBERS, *pieces])
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.sampled_from([0, 1, 2, 4, 8, 64, 1 << 30]))] = draw(piece)
    return bytes(content)


@st.composite
def text_like(draw: st.DrawFn, valid: tuple[str, ...], pieces: str | tuple[str, ...]) -> str:
    """A valid text with up to five places replaced, also by lone surrogates and by thousands of repetitions."""
    found = draw(st.sampled_from(valid))
    piece = st.sampled_from([*pieces, *NUMBER_TEXTS, "\n", "\0", "\udc80", " "]) | st.text(max_size=3)
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(found)))
        new = draw(piece) * draw(st.sampled_from([1, 1, 1, 1, 2, 3000]))
        found = found[:at] + new + found[at + draw(st.sampled_from([0, 1, 2, len(found)])) :]
    return found[: 1 << 17]  # Linux allows no longer variable or argument


DEEP = "@deep"
"""Placeholder that `json_like` replaces by a deeply nested list."""
ODD_VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, -1, 0.5, 1 << 70, 10**400, float("inf"), float("nan"), "", "x", "\0", DEEP])
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=4,
)


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with up to three parts replaced, removed or duplicated."""
    if not value or not isinstance(value, dict | list) or not draw(st.integers(0, 5)):
        return draw(ODD_VALUES)
    found = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(list(found)))
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "duplicate"]))
        if what == "replace":
            found[key] = draw(altered(found[key]))
        elif what == "duplicate":
            found[draw(st.text(max_size=3))] = found[key]
        elif len(found) > 1:
            del found[key]
    return found if isinstance(value, dict) else list(found.values())


TOO_DEEP = b"[" * 100_000
"""JSON nested more deeply than the parser's recursion limit."""


@st.composite
def json_like(draw: st.DrawFn, value: Any) -> bytes:
    """JSON of an altered value, sometimes nested too deeply; or valid JSON with its bytes mutated."""
    if not draw(st.integers(0, 3)):
        return draw(mutated((json.dumps(value).encode(),), (b"NaN", b"[" * 2000, b'"', b"{", b"1e999", b"\\ud800")))
    depth = draw(st.sampled_from([50, 400, 700, 900, 100_000]))
    text = json.dumps(draw(altered(value)))
    return text.replace(f'"{DEEP}"', "[" * depth + "]" * depth).encode()
