"""What names of strategies say: the programming style, and whether Horovod or one process alone trains."""

from __future__ import annotations

STYLES = ("keras-fit", "module", "ndarray")
"""Programming styles other than a framework's usual one. The name alone is a strategy over Horovod."""
OVER_HOROVOD = ("horovod", *STYLES)
SINGLE = ("single", *(f"{style}-single" for style in STYLES))


def style_of(strategy: str) -> str:
    """The programming style of a strategy; empty for the framework's usual one."""
    return next((style for style in STYLES if f"{strategy}-".startswith(f"{style}-")), "")
