"""Which parameters the patterns of --freeze and --no-decay name, in all frameworks."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hvdtrain.config.option import invalid
from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean

SHOWN = 6
"""How many names a message shows."""
Parameter = TypeVar("Parameter")
Named = dict[str, Parameter]


def without_decay(patterns: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """The names, of trained parameters, that a pattern matches. Raises UserError for a pattern that matches none."""
    return _matched("no_decay", patterns, list(names))


def freeze(
    patterns: Sequence[str], trained: Named[Parameter], others: Iterable[str]
) -> tuple[Named[Parameter], Named[Parameter]]:
    """Those of the parameters that are still trained, and those that a pattern matches.

    others: names of what is not trained anyway, which a pattern may also match. Raises UserError for a pattern that
    matches nothing, and if nothing is left to train.
    """
    names = _matched("freeze", patterns, [*trained, *others])
    left = {name: parameter for name, parameter in trained.items() if name not in names}
    if patterns and not left:
        raise UserError("--freeze: all parameters are frozen", "leave some to train", option="freeze")
    return left, {name: parameter for name, parameter in trained.items() if name in names}


def _matched(option: str, patterns: Iterable[str], known: list[str]) -> frozenset[str]:
    """The names that one of the patterns matches.

    patterns: as in file names of a shell: * stands for any text, ? for one character, [...] for one of these.
    """
    found = set[str]()
    for pattern in patterns:
        matched = {name for name in known if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            shown = ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")
            problem = f"matches no trained parameter{did_you_mean(pattern, known)}; they are {shown}"
            raise invalid(option, pattern, problem, "give a pattern such as '*.bias', in quotes")
        found |= matched
    return frozenset(found)
