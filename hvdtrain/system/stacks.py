"""The stacks: sets of frameworks that work together, and their Pythons. Set-up installs one of them."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.system import distributions

MARKER = ".hvdtrain-stack"
"""File of an environment with the name of its stack, which set-up writes."""
STAMPS = (".hvdtrain-setup", ".hvdtrain-horovod")
"""Files of an environment without which set-up installs all of it again, and Horovod again."""


@dataclass(frozen=True)
class Stack:
    """What `make setup STACK=name` installs. A test compares it with setup/stacks/<name>/stack.conf."""

    name: str
    pythons: tuple[str, ...]
    """Versions such as 3.12, the preferred one first."""
    frameworks: tuple[str, ...]


STACKS = {
    one.name: one
    for one in (
        Stack("all", ("3.11", "3.10"), ("torch", "mxnet", "tensorflow")),
        Stack("pytorch", ("3.13", "3.12", "3.11", "3.10"), ("torch",)),
        Stack("tensorflow", ("3.13", "3.12", "3.11", "3.10"), ("tensorflow",)),
    )
}


def running_python() -> str:
    """The version of the Python that runs, such as 3.12."""
    return "{}.{}".format(*sys.version_info[:2])


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, to compare it with another: 3.12 is newer than 3.9."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def installed_frameworks() -> tuple[str, ...]:
    """The frameworks of which a distribution is installed, importable or not."""
    return tuple(filter(distributions.framework_distribution, distributions.DISTRIBUTIONS))


def installed_stack() -> Stack | None:
    """The stack of this environment: the one that set-up recorded, else the one whose frameworks are installed.

    None without a framework, and for a mixture that is none of the stacks.
    """
    with suppress(OSError, KeyError):
        return STACKS[Path(sys.prefix, MARKER).read_text().strip()]
    found = installed_frameworks()
    if "mxnet" in found:  # it decides the versions of all others
        return STACKS["all"]
    return next((one for one in STACKS.values() if one.frameworks == found), None)


def setup_command(stack: Stack) -> str:
    """The command that sets up a stack, with a Python for it if the one that runs is not supported."""
    python = "" if running_python() in stack.pythons else f" BASE_PYTHON={stack.pythons[0]}"
    return f"make setup STACK={stack.name}{python}"


def repair_command() -> str:
    """The command that installs this environment's packages and Horovod again, as its stack has them."""
    own = installed_stack() or stack_for_this_python()
    stamps = [str(path) for name in STAMPS if (path := Path(sys.prefix, name)).exists()]
    if not stamps:
        return setup_command(own)
    # Without its stamps, as set-up would find the environment up to date.
    checkout = Path(__file__).parents[2]
    venv = "" if Path(sys.prefix) == checkout / ".venv" else f" VENV={shlex.quote(sys.prefix)}"
    return f"rm -f {' '.join(map(shlex.quote, stamps))} && {setup_command(own)}{venv}"


def stack_with(framework: str) -> Stack:
    """The stack to set up for a framework: this environment's if it has it, else one for the Python that runs."""
    own = installed_stack()
    if own and framework in own.frameworks:
        return own
    having = [one for one in STACKS.values() if framework in one.frameworks]
    return next((one for one in having if running_python() in one.pythons), having[0])


def stack_for_this_python() -> Stack:
    """The stack to set up for the Python that runs, with a framework that is installed if there is one."""
    fitting = [one for one in STACKS.values() if running_python() in one.pythons] or [STACKS["pytorch"]]
    return next((one for one in fitting if set(one.frameworks) & set(installed_frameworks())), fitting[0])


def pythons_of(framework: str) -> tuple[str, ...]:
    """The Pythons of all stacks that have a framework, the newest first."""
    found = {version for one in STACKS.values() if framework in one.frameworks for version in one.pythons}
    return tuple(sorted(found, key=numbers, reverse=True))


def listed(pythons: tuple[str, ...]) -> str:
    """Versions of Python in a sentence, such as `3.10 or 3.11`."""
    oldest_first = sorted(pythons, key=numbers)
    if len(oldest_first) > 2:
        return f"{oldest_first[0]} to {oldest_first[-1]}"
    return " or ".join(oldest_first)


def why_missing(framework: str) -> str:
    """Why this environment does not have a framework, as the end of a sentence; empty if it should have it."""
    own = installed_stack()
    if own and framework in own.frameworks:
        return ""
    reasons = [f"is not part of the stack {own.name}"] if own else []
    if running_python() not in (pythons := pythons_of(framework)):
        reasons.append(f"needs Python {listed(pythons)}")
    return " and ".join(reasons)
