"""Finds the wheel of Horovod that fits an environment, in a folder, on a page or in a package index.

usage: python setup/wheels.py describe VERSION FOLDER      the environment's description, as JSON; FOLDER: setup/horovod
       python setup/wheels.py label                        the local version for the description on standard input
       python setup/wheels.py take PLACE FOLDER            the wheel of a folder or page that fits the description on
                                                           standard input, downloaded to FOLDER where it is remote
       python setup/wheels.py fits                         status 0 if the installed Horovod fits the description
       python setup/wheels.py search WHEEL TEXT...         status 1 and a line for each file that contains a text

setup/wheel_description.py says what a description is, and what fits.
"""

from __future__ import annotations

import hashlib
import html.parser
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse
from urllib.request import url2pathname

from wheel_description import describe, differences, label, needed, wheel_differences

RECORD = "hvdtrain.json"
MAX_LISTED = 3
"""Wheels that do not fit, whose reasons an error lists."""
TIMEOUT_S = 60


def listed(place: str) -> dict[str, str]:
    """Name and address of each wheel of Horovod in a folder, or on a page of links or a package index."""
    scheme = urlparse(place).scheme
    if scheme in ("http", "https"):
        return _on_page(place)
    path = Path(url2pathname(urlparse(place).path)) if scheme == "file" else Path(place)
    if path.suffix == ".whl":
        return {path.name: str(path)}
    if not path.is_dir():
        sys.exit(
            f"set-up: HOROVOD_WHEELS={place} is not a folder; give one with wheels of Horovod, or a page's address"
        )
    return {wheel.name: str(wheel) for wheel in sorted(path.resolve().glob("horovod-*.whl"))}


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _on_page(address: str) -> dict[str, str]:
    wheels, index = {}, ""
    for link in _links(address):
        name = unquote(urlparse(link).path.rstrip("/").rpartition("/")[2])
        if name.startswith("horovod-") and name.endswith(".whl"):
            wheels[name] = link
        elif name == "horovod":
            index = link
    # The top page of a package index links to a page for each package.
    return wheels or (_on_page(index) if index and index != address else {})


def _links(address: str) -> Iterator[str]:
    answer = _get(address)
    page = _Links()
    page.feed(answer.text)
    return (urljoin(answer.url, link) for link in page.links)


def _get(address: str):
    import requests  # knows proxies, certificates and credentials as pip does

    try:
        answer = requests.get(address, timeout=TIMEOUT_S)
        answer.raise_for_status()
    except requests.RequestException as error:
        sys.exit(
            f"set-up: HOROVOD_WHEELS: {_plain(address)} cannot be read ({type(error).__name__}); check the address"
        )
    return answer


def _plain(address: str) -> str:
    """An address without a password."""
    return re.sub(r"//[^/@]*@", "//", address)


def take(place: str, folder: Path, description: dict) -> Path:
    """The wheel that fits best: one for exactly the frameworks and the device that are wanted, where there is one."""
    wheels = listed(place)
    reasons = {name: wheel_differences(name, description) for name in wheels}
    fitting = [name for name in wheels if not reasons[name]]
    if not fitting:
        _nothing_fits(place, reasons, description)
    name = max(fitting, key=lambda name: (f"+{label(description)}-" in name, "cuda" not in name, name))
    address, _, fragment = wheels[name].partition("#")
    path = Path(address)
    if "://" in address:
        path = folder / name
        _download(address, fragment, path)
    _check_record(path)
    return path


def _nothing_fits(place: str, reasons: dict[str, list[str]], description: dict) -> None:
    misfits = [f"{name} ({', '.join(why)})" for name, why in reasons.items()]
    more = f" and {len(misfits) - MAX_LISTED} more" if len(misfits) > MAX_LISTED else ""
    what = f"it has {'; '.join(misfits[:MAX_LISTED]) or 'none'}{more}, but this environment needs {needed(description)}"
    sys.exit(
        f"set-up: no wheel in HOROVOD_WHEELS={_plain(place)} fits: {what}. Run `make wheel` on a machine with these "
        "versions and add the file from dist/, or unset HOROVOD_WHEELS to build Horovod here."
    )


def _download(address: str, fragment: str, path: Path) -> None:
    content = _get(address).content
    if expected := re.search(r"sha256=([0-9a-f]{64})", fragment):
        digest = hashlib.sha256(content).hexdigest()
        if digest != expected[1]:
            sys.exit(
                f"set-up: {_plain(urldefrag(address).url)} has SHA-256 {digest}, but its page says {expected[1]}: "
                "it was changed or damaged; upload it again"
            )
    path.write_bytes(content)


def _check_record(path: Path) -> None:
    """The name of a file can be changed, so compare it with what the wheel's build wrote into it."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = next(name for name in archive.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{RECORD}", name))
            version = label(json.loads(archive.read(inside)))
    except (OSError, StopIteration, ValueError, KeyError, zipfile.BadZipFile):
        sys.exit(f"set-up: {path} is not a wheel that `make wheel` built, or it is damaged; copy it again")
    if f"+{version}-" not in path.name:
        sys.exit(
            f"set-up: {path} was renamed: it is built for {version}; give it the name back that `make wheel` gave it"
        )


def fits(description: dict) -> bool:
    """Whether the installed Horovod fits."""
    try:
        return not differences(metadata.version("horovod"), description)
    except metadata.PackageNotFoundError:
        return False


def search(wheel: Path, texts: list[str]) -> list[str]:
    """The files of a wheel that contain one of the texts."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return [f"{name}: {text}" for name in contents for text in texts if text.encode() in contents[name]]


def main(command: str, *arguments: str) -> int:
    """Run one command of the usage, and return the exit status."""
    if command == "describe":
        print(json.dumps(describe(arguments[0], Path(arguments[1])), indent=1))
    elif command == "search":
        hits = search(Path(arguments[0]), list(arguments[1:]))
        print(*hits, sep="\n", end="\n" if hits else "")
        return bool(hits)
    else:
        description = json.load(sys.stdin)
        if command == "fits":
            return not fits(description)
        print(label(description) if command == "label" else take(arguments[0], Path(arguments[1]), description))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
