"""--model: a built-in network by name, or the user's own in a TOML or Python file."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network
from hvdtrain.networks.record import from_record, to_record
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.system.files import read_toml
from hvdtrain.system.python_files import is_reference, load_object
from hvdtrain.system.text import did_you_mean


def find_network(model: str) -> Network:
    """The network that --model names: a built-in one, NET.toml, or FILE.py:NAME.

    Raises UserError if there is none, or the file is not valid.
    """
    if model in NETWORKS:
        return NETWORKS[model]
    if model.endswith(".toml"):
        return _from_toml(Path(os.path.expanduser(model)), f"--model {model}")
    if is_reference(model):
        return _from_python(model, f"--model {model}")
    raise UserError(
        f"--model {model}: no such network{did_you_mean(model, NETWORKS)}",
        f"give {', '.join(NETWORKS)}, a file NETWORK.toml, or FILE.py:NAME",
    )


def _from_python(reference: str, option: str) -> Network:
    """The network as its record has it: with values of the right types, which Python does not check."""
    found = load_object(reference, option)
    if not isinstance(found, Network):
        raise UserError(f"{option}: is of type {type(found).__name__}", "give a hvdtrain.Network")
    if not isinstance(found.layers, tuple | list):
        raise UserError(f"{option}: its layers are of type {type(found.layers).__name__}", "give a tuple of layers")
    try:
        return from_record(to_record(found))
    except ValueError as error:
        raise UserError(f"{option}: {error}", "correct the network (docs/networks.md)") from None


def _from_toml(path: Path, option: str) -> Network:
    try:
        content = read_toml(path)
    except OSError as error:
        raise UserError(f"{option}: cannot be read ({error.strerror})", "give a TOML file with a network") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{option}: is no valid TOML ({' '.join(str(error).split())})", "correct the file") from None
    try:
        return from_record(content)
    except ValueError as error:
        raise UserError(f"{option}: {error}", "correct the file (docs/networks.md)") from None
