"""Prints from where, and how, pip and uv are configured to get packages: a variable of theirs a line.

usage: python -I setup/settings.py

Set-up keeps these settings of the user's, and no others: what is installed, and where, it says itself. uv gets pip's
settings where it has none of its own: where a machine has a mirror or a proxy, pip's are set.
It uses only the standard library and pip: `pip config list` is itself subject to what is configured, such as `user`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "no-cache-dir": "UV_NO_CACHE",
    "cache-dir": "",
    "keyring-provider": "",
}
"""What is kept of pip's configuration, and the variable with which uv understands it."""
SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration; a later one counts for more."""
OF_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "allow-insecure-host": "UV_INSECURE_HOST",
    "native-tls": "UV_NATIVE_TLS",
    "system-certs": "UV_SYSTEM_CERTS",
    "keyring-provider": "UV_KEYRING_PROVIDER",
    "index-strategy": "UV_INDEX_STRATEGY",
    "http-proxy": "HTTP_PROXY",
    "https-proxy": "HTTPS_PROXY",
    "no-proxy": "NO_PROXY",
    "offline": "UV_OFFLINE",
    "cache-dir": "UV_CACHE_DIR",
    "no-cache": "UV_NO_CACHE",
    "link-mode": "UV_LINK_MODE",
}
"""What is kept of uv.toml."""
VARIABLES = re.compile(
    f"{'|'.join({*OF_PIP.values(), *OF_UV.values()} - {''})}"
    r"|UV_((EXTRA_)?INDEX_|HTTP_|CONCURRENT_)\w+|UV_(COMPILE_BYTECODE|PYTHON_INSTALL_DIR)"
)
"""uv's own variables that are kept."""
CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name certificates, those that pip reads first."""
SYSTEMS = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # Alpine
)
"""The system's own, to which administrators add those of proxies. uv and pip before 24.2 would use what they bring."""


def pip_configuration() -> dict[str, str]:
    """What pip reads of its files and variables, as `pip config list` prints it."""
    from pip._internal.configuration import Configuration
    from pip._internal.exceptions import ConfigurationError

    configuration = Configuration(isolated=False)
    try:
        configuration.load()
    except ConfigurationError as error:
        sys.exit(f"set-up: pip's configuration cannot be read, correct it: {error}")
    found: dict[str, str] = {}
    for key, value in configuration.items():
        found.update(value if isinstance(value, dict) else {key: value})  # newer versions: by file
    return found


def of_pip(configuration: dict[str, str]) -> dict[str, str]:
    """The values that are kept. As in pip, the newest of all indexes counts."""
    pip: dict[tuple[int, str], str] = {}
    for key, value in configuration.items():
        section, _, name = key.rpartition(".")
        if section in SECTIONS and name in OF_PIP:
            pip[SECTIONS.index(section), name] = " ".join(value.split())
    return {name: value for (_, name), value in sorted(pip.items())}


def certificates(environment: dict[str, str]) -> dict[str, str]:
    """The setting of pip's for those of the environment, or the system's."""
    files = (*filter(None, map(environment.get, CERTIFICATES)), *filter(os.path.isfile, SYSTEMS))
    return {"cert": files[0]} if files else {}


def for_uv(pip: dict[str, str]) -> dict[str, str]:
    """The same as uv's variables."""
    found = {OF_PIP[name]: value for name, value in pip.items() if OF_PIP[name]}
    for name, value in found.items():
        if name == "UV_FIND_LINKS":
            found[name] = _listed(name, value.split())
        elif name in ("UV_NO_INDEX", "UV_NO_CACHE"):
            found[name] = "0" if value.lower() in ("0", "false", "no", "off") else "1"
    return found


def _listed(name: str, words: list[str]) -> str:
    """uv separates folders by commas, and all else by spaces; a folder's own comma is written as in an address."""
    if name != "UV_FIND_LINKS":
        return " ".join(words)
    return ",".join(word.replace(",", "%2C") for word in words)


def config_files(environment: dict[str, str]) -> list[Path]:
    """The files that uv would read: a later one counts for more."""
    if environment.get("UV_NO_CONFIG", "0").lower() not in ("", "0", "false"):
        return []
    if environment.get("UV_CONFIG_FILE"):
        return [Path(environment["UV_CONFIG_FILE"])]
    folders = ["/etc", *reversed((environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))]
    folders.append(environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config"))
    return [file for folder in folders if (file := Path(folder, "uv", "uv.toml")).is_file()]


def of_uv(files: list[Path]) -> dict[str, str]:
    """Variables of uv's that say the same as its files."""
    found: dict[str, str] = {}
    for file in files:
        settings = _read_toml(file)
        for name, value in {**settings.get("pip", {}), **settings}.items():
            if name in OF_UV:
                words = value if isinstance(value, list) else [str(value).replace("True", "true")]
                found[OF_UV[name]] = _listed(OF_UV[name], words)
        found |= _indexes(settings.get("index", []))
    return found


def _indexes(tables: list[dict[str, Any]]) -> dict[str, str]:
    """Those for all packages: no other package than one that names it is read from an explicit index."""

    def named(table: dict[str, Any]) -> str:
        return f"{table['name']}={table['url']}" if "name" in table else table["url"]

    found: dict[str, str] = {}
    for table in tables:
        if table.get("default"):
            found["UV_DEFAULT_INDEX"] = named(table)
        elif not table.get("explicit"):
            found["UV_INDEX"] = f"{found.get('UV_INDEX', '')} {named(table)}".strip()
    return found


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"    {file} is not read: {error}", file=sys.stderr)
        return {}


def settings(configuration: dict[str, str], environment: dict[str, str]) -> Iterator[str]:
    """The variables, which replace all others of pip and uv."""
    pip = {**certificates(environment), **of_pip(configuration)}
    for name, value in pip.items():
        yield f"PIP_{name.upper().replace('-', '_')}={value}"
    yield f"PIP_CONFIG_FILE={os.devnull}"
    from_pip, from_files = for_uv(pip), of_uv(config_files(environment))
    indexes = " ".join(found["UV_INDEX"] for found in (from_files, from_pip) if "UV_INDEX" in found)
    uv = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        **from_pip,
        **from_files,
        **({"UV_INDEX": indexes} if indexes else {}),
    }
    newer = {"UV_INDEX_URL": "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL": "UV_INDEX"}
    uv |= {newer.get(name, name): value for name, value in environment.items() if VARIABLES.fullmatch(name)}
    for name, value in {**uv, "UV_NO_CONFIG": "1"}.items():
        yield f"{name}={value}"


def main() -> int:
    """Print the variables."""
    print(*settings(pip_configuration(), dict(os.environ)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
