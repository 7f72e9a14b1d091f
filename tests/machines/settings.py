"""This machine's settings of proxies, certificates and package indexes, for a machine that is made on it.

What they name, a file or a folder, is found there below SETTINGS, so nothing depends on where it lies here.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

VARIABLES = re.compile(r"SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:\w+_proxy)")
NOT_PIPS = re.compile(r"PIP_(CONFIG_FILE|CACHE_DIR|TARGET|PREFIX|USER)")
"""Variables that say where pip writes, on this machine only."""
SETTINGS = Path("/settings")
PLACE = re.compile(r"(?:(?<=^)|(?<=\s)|(?<=file://))/\S+", re.M)
"""An absolute path in a value, or in a URL."""


class Settings:
    """Variables, and the configurations of pip and apt. `mounts` has what they name, by its path on this machine."""

    def __init__(self, environment: Mapping[str, str] = os.environ, home: Path | None = None) -> None:
        self.mounts: dict[Path, Path] = {}
        self.variables = {name: self._moved(value) for name, value in environment.items() if VARIABLES.fullmatch(name)}
        self.pip = self._moved(pip_configuration(environment, home or Path.home()))
        self.apt = apt_configuration()

    def _moved(self, text: str) -> str:
        return PLACE.sub(lambda match: self._place(Path(match[0])), text)

    def _place(self, path: Path) -> str:
        if not path.exists():
            return str(path)
        # The pages of an index in a folder link to files beside it.
        top = path.parent if path.is_dir() and (path.parent / "files").is_dir() else path
        place = self.mounts.setdefault(top, SETTINGS / f"{len(self.mounts)}-{top.name}")
        return str(place / path.relative_to(top))


def pip_configuration(environment: Mapping[str, str], home: Path) -> str:
    """All files and variables that pip reads, as one file; the later ones win."""
    merged, files = configparser.RawConfigParser(strict=False), [Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf")
    merged.read([*files, environment.get("PIP_CONFIG_FILE") or os.devnull])
    sections = {"global": {}, **{name: dict(merged.items(name)) for name in merged.sections()}}
    for name, value in environment.items():
        if name.startswith("PIP_") and not NOT_PIPS.fullmatch(name):
            sections["global"][name.removeprefix("PIP_").lower().replace("_", "-")] = value
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = " + value.replace("\n", "\n    ") for key, value in values.items())]
    return "\n".join([*lines, ""])


def apt_configuration() -> str:
    """How apt reaches its archives: proxies, and whether it believes their dates."""
    try:
        said = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""
    return "".join(re.findall(r"^Acquire::(?:https?|Check-\S+?)\b.*\n", said, re.M))
