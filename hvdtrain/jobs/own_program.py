"""Which command of hvdtrain a program is, by the entry point that it starts: its options can be checked before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast


class OwnProgram(NamedTuple):
    """A command of hvdtrain, perhaps started by another program."""

    start: list[str]
    """What starts it, up to the command's name."""
    framework: Literal["torch", "mxnet", "tensorflow"] | None
    """That of the entry point; None where an option says it."""
    options: list[str]

    @property
    def name(self) -> str:
        """As its usage calls it."""
        return f"python -m hvdtrain.{self.framework}_lenet" if self.framework else "hvdtrain train"

    def split(self) -> tuple[list[str], list[str]]:
        """Of a sweep: its own options, and the command of its trials, without the name of this program."""
        end = self.options.index("--") if "--" in self.options else len(self.options)
        return self.options[:end], without_program(self.options[end + 1 :])


def own_program(words: Sequence[str], command: str) -> OwnProgram | None:
    """The program as that command; None if it is another one, or none of hvdtrain's."""
    words = list(words)
    for end, word in enumerate(words, 1):
        entry = re.fullmatch(r"hvdtrain\.(torch|mxnet|tensorflow)_lenet", word)
        if entry and command == "train" and words[end - 2].endswith("m"):
            return OwnProgram(words[:end], cast("Any", entry[1]), words[end:])
        if Path(word.removeprefix("-m")).name == "hvdtrain" and words[end : end + 1] == [command]:
            return OwnProgram(words[: end + 1], None, words[end + 1 :])
    return None


def without_program(command: Sequence[str]) -> list[str]:
    """A command line of hvdtrain from its command on, without `hvdtrain` or `python -m hvdtrain` before it."""
    if list(command[:1]) == ["hvdtrain"]:
        return list(command[1:])
    return list(command[3:] if list(command[1:3]) == ["-m", "hvdtrain"] else command)
