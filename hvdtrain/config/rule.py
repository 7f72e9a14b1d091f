"""A rule on options: values of one that cannot be with some values of others, or with facts. `rules` has them all."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hvdtrain.config.option import invalid, key
from hvdtrain.errors import UserError


@dataclass(frozen=True)
class Values:
    """Some values of an option or a fact.

    listed: a text is a pattern, and None the default: of a fact, what counts as false. is_inverse: all but those.
    compare: instead, those that compare so with the value of `other`.
    """

    listed: tuple[Any, ...] = ()
    is_inverse: bool = False
    compare: Callable[[Any, Any], bool] | None = None
    other: str = ""

    def have(self, value: Any, default: Any, known: Mapping[str, Any]) -> bool:
        """Whether this value is one of them. known: all options and facts by name."""
        if self.compare:
            return self.compare(value, known[self.other])
        return self.is_inverse != any(
            fnmatchcase(str(value), one) if isinstance(one, str) else value == (default if one is None else one)
            for one in self.listed
        )


def only(*listed: Any) -> Values:
    return Values(listed)


def but(*listed: Any) -> Values:
    return Values(listed, is_inverse=True)


def above(name: str) -> Values:
    return Values(compare=operator.gt, other=name)


def below(name: str) -> Values:
    return Values(compare=operator.lt, other=name)


def up_to(name: str) -> Values:
    return Values(compare=operator.le, other=name)


DEFAULT, GIVEN, NONE = only(None), but(None), only()


@dataclass(frozen=True)
class Rule:
    """Values of an option that cannot be with some values of others, or with facts about strategy, target, job or data.

    option: the one at fault. when: the others' values by name. why: the end of a sentence, which may name options and
    facts in braces. instead: what to do, where that is not plain. allowed: the values that the option may have then.
    """

    option: str
    when: Mapping[str, Values]
    why: str
    instead: str = ""
    allowed: Values = DEFAULT

    @functools.cached_property
    def needed(self) -> set[str]:
        """The options and facts that decide whether it is broken."""
        return {self.option, *self.when, *(values.other for values in self.when.values() if values.other)}

    def is_broken(self, known: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
        """Whether options break it; False where something that it needs is not known."""
        if not self.needed <= known.keys() or self.allowed.have(known[self.option], defaults[self.option], known):
            return False
        return all(values.have(known[name], defaults.get(name, False), known) for name, values in self.when.items())

    def error(self, known: Mapping[str, Any], defaults: Mapping[str, Any]) -> UserError:
        others = [name for name in self.when if name in defaults]
        given = " and ".join(f"--{key(name)} {_text(known[name])}".rstrip() for name in others)
        value = f"{_text(known[self.option])} with {given}" if given else _text(known[self.option])
        listed = () if self.allowed.is_inverse else self.allowed.listed
        allowed = " or ".join(str(defaults[self.option] if one is None else one) for one in listed)
        use = "leave it out" if allowed in ("", "False", "()") else f"use {allowed}"
        change = [f"{'leave out' if self.when[name] == GIVEN else 'change'} --{key(name)}" for name in others]
        remedy = self.instead.format_map(known) or ", or ".join([use, *change])
        return invalid(self.option, value.lstrip(), self.why.format_map(known), remedy)


def _text(value: Any) -> str:
    """A value as on a command line."""
    return "" if value is True else " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
