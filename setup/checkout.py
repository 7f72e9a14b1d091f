"""Lets the Pythons of an environment import hvdtrain from this checkout, also where a folder is called hvdtrain.

usage: python setup/checkout.py CHECKOUT    with the environment's Python

pip makes an editable package known only after the entries of sys.path, of which one may be a working directory where
a folder hvdtrain, such as a clone of the repository, counts as a namespace package. So the environment gets an entry of
which only this package can be imported. The checkout itself as an entry would offer its other folders (docker, tests).
It uses only the standard library.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

NAME = "hvdtrain_checkout"
MODULE = '''"""Written by setup/checkout.py."""

import sys
from importlib.machinery import PathFinder

ENTRY = "__hvdtrain_checkout__"


class Finder:
    """Finds hvdtrain, and nothing else."""

    def __init__(self, entry):
        if entry != ENTRY:
            raise ImportError

    @staticmethod
    def find_spec(name, target=None):
        return PathFinder.find_spec(name, [{checkout}]) if name == "hvdtrain" else None


sys.path_hooks.append(Finder)
sys.path.append(ENTRY)
'''


def main(checkout: str) -> None:
    """Write the module, and the file that has Python import it when it starts."""
    site = Path(sysconfig.get_path("purelib"))
    site.joinpath(f"{NAME}.py").write_text(MODULE.format(checkout=ascii(checkout)), encoding="ascii")
    site.joinpath(f"{NAME}.pth").write_text(f"import {NAME}\n", encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
