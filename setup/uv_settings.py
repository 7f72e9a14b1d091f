"""Prints, for uv, what pip is configured to use: a variable of uv's a line.

usage: python -m pip config list | python -I -S setup/uv_settings.py

uv reads neither pip's files nor its variables, and where a machine has a mirror or a proxy, pip's are set.
It uses only the standard library.
"""

from __future__ import annotations

import ast
import os
import sys

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "no-cache-dir": "UV_NO_CACHE",
}
SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration; a later one counts for more."""


def settings(listing: str) -> dict[str, str]:
    """Values of uv's variables for what `pip config list` printed. As in pip, the newest of all indexes counts."""
    pip: dict[tuple[int, str], str] = {}
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if equals and section in SECTIONS and VARIABLES.get(name):
            pip[SECTIONS.index(section), name] = str(ast.literal_eval(value))
    found = {VARIABLES[name]: value for (_, name), value in sorted(pip.items())}
    for name, value in found.items():
        words = value.split()
        if name == "UV_FIND_LINKS":
            # uv separates them by commas; a folder's own are written as in an address.
            found[name] = ",".join(word.replace(",", "%2C") for word in words)
        elif name in ("UV_NO_INDEX", "UV_NO_CACHE"):
            found[name] = "0" if value.lower() in ("0", "false", "no", "off") else "1"
        else:
            found[name] = " ".join(words)
    found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        found["UV_NO_CONFIG"] = "1"
    return found


def main() -> int:
    """Print the variables."""
    for name, value in settings(sys.stdin.read()).items():
        print(f"{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
