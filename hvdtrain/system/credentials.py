"""Which variables hold credentials, by their names and by their values, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|JWT|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE
)
"""Parts of the names of variables that hold credentials."""
VALUE = re.compile(
    r"//[^/\s]+@"  # a URL with a user: a password, or a token in its place
    r"|\b(bearer|basic)[ :=]+[\w.~+/-]{8}"
    r"|(token|secret|password|passwd|pwd|api[-_]?key|access[-_]?key|signature|\bsig)=[^&\s]"  # of a query
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\."  # a JSON web token
    r"|\b(gh[pousr]|github_pat|glpat|hf|sk|pk|xox[abeoprs])[-_][A-Za-z0-9_-]{16}|\b(AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY",
    re.IGNORECASE,
)
"""What passwords and tokens look like in the values of variables."""


class Variables(NamedTuple):
    """Variables whose values anyone may see, and those that hold credentials."""

    public: dict[str, str]
    private: dict[str, str]


def holds(name: str, value: str) -> bool:
    """Whether a variable holds credentials."""
    return bool(NAME.search(name) or VALUE.search(value))


def separated(variables: Mapping[str, str]) -> Variables:
    """The variables, separated by whether they hold credentials."""
    private = {name: value for name, value in variables.items() if holds(name, value)}
    return Variables({name: value for name, value in variables.items() if name not in private}, private)


def removed(text: str) -> str:
    """A text without the users, passwords and queries of its URLs."""
    return re.sub(r"(/\S*?)\?[^\s'\")]+", r"\1?...", re.sub(r"//\S*@", "//", text))
