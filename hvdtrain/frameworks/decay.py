"""Which parameters have no weight decay, by --no-decay."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from hvdtrain.config.option import invalid

SHOWN = 6
"""How many names a message shows."""


def without_decay(patterns: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """The names, of trained parameters, that a pattern matches. Raises UserError for a pattern that matches none.

    patterns: as in file names of a shell: * stands for any text, ? for one character, [...] for one of these.
    """
    known, found = list(names), set[str]()
    for pattern in patterns:
        matched = {name for name in known if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            shown = ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")
            problem = f"matches no trained parameter; they are {shown}"
            raise invalid("no_decay", pattern, problem, "give a pattern such as '*.bias', in quotes")
        found |= matched
    return frozenset(found)
