"""Lets a virtual environment use the PyTorch of another Python as it is.

usage: python -I setup/system_torch.py link PYTHON CONSTRAINTS    with the Python of the environment
       python -I setup/system_torch.py version PYTHON             prints the version of that PyTorch

PyTorch and what it requires become links in a folder of the environment; nothing else of the other Python is visible.
pip counts them as installed, and cannot remove or change them: their metadata lacks the list of files, which pip needs
to remove a package. Prints CONSTRAINTS without the pins of these packages.
It uses only the standard library and pip's own copy of packaging, since the environment has nothing else yet.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path

FOLDER = "hvdtrain-system-torch"
OWN = {"numpy", "pip", "setuptools", "wheel"}
"""Pinned in the environment: NumPy, which PyTorch does not require, and what builds packages."""


def normal(name: str) -> str:
    """A distribution's name as in constraints."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(python: str) -> dict[str, Distribution]:
    """The distributions that a Python can import, by their names; the first of a name counts."""
    program = "import json, sys; print(json.dumps([path for path in sys.path if path]))"
    path = json.loads(subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout)
    by_name: dict[str, Distribution] = {}
    for item in distributions(path=path):
        if item.metadata["Name"]:
            by_name.setdefault(normal(item.metadata["Name"]), item)
    return by_name


def required(available: dict[str, Distribution], name: str) -> tuple[dict[str, Distribution], list]:
    """A package and all that it requires, as far as installed; and all of these requirements."""
    from pip._vendor.packaging.requirements import Requirement

    closure, requirements, todo = {}, [], [(name, "")]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        if name not in available:
            continue
        closure[name] = available[name]
        for line in available[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            requirements.append(requirement)
            wanted = {(normal(requirement.name), each) for each in ("", *requirement.extras)}
            todo += wanted - seen
            seen |= wanted
    return closure, requirements


def modules(item: Distribution) -> set[str]:
    """The files and folders of a distribution, next to its metadata."""
    names = {file.parts[0] for file in item.files or () if file.parts[0] not in ("..", "/", "__pycache__")}
    if not names:  # Debian's packages and conda's may list no files
        names = set((item.read_text("top_level.txt") or item.metadata["Name"].replace("-", "_")).split())
        names |= {f"{name}.py" for name in names}
    return {name for name in names if not name.endswith((".dist-info", ".egg-info", ".pth"))}


def link(item: Distribution, folder: Path) -> None:
    """Link a distribution's modules into a folder, and copy its metadata there without the list of files."""
    root = Path(str(item.locate_file("")))
    for name in modules(item):
        place = folder / name
        if (root / name).exists() and not place.is_symlink():
            place.symlink_to((root / name).resolve())
    source = Path(item._path)  # type: ignore[attr-defined]
    if source.is_dir():
        left_out = shutil.ignore_patterns("RECORD", "installed-files.txt", "SOURCES.txt", "direct_url.json")
        target = folder / source.name
        shutil.copytree(source, target, ignore=left_out)
        (target / "INSTALLER").write_text(f"hvdtrain's set-up, which links to {root}\n")
    else:
        shutil.copy(source, folder / source.name)


def main(arguments: list[str]) -> int:
    """Link, or print the version."""
    available = installed(arguments[1])
    if "torch" not in available:
        print(f"set-up: {arguments[1]} has a PyTorch without metadata, which pip cannot use", file=sys.stderr)
        return 1
    if arguments[0] == "version":
        print(available["torch"].version)
        return 0
    closure, requirements = required(available, "torch")
    linked = {name: item for name, item in closure.items() if name not in OWN}
    purelib = Path(sysconfig.get_path("purelib"))
    folder = purelib.parent / FOLDER
    folder.mkdir()
    for item in linked.values():
        link(item, folder)
    (purelib / "hvdtrain_system_torch.pth").write_text(f"{folder}\n")
    for line in Path(arguments[2]).read_text().splitlines():
        pin = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line)
        # The environment's own packages keep their pins, unless this PyTorch requires another version.
        if not pin or (
            normal(pin[1]) not in linked
            and all(pin[2] in each.specifier for each in requirements if normal(each.name) == normal(pin[1]))
        ):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
