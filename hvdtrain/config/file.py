"""Options from a TOML file (`--config`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.config import option_values
from hvdtrain.errors import UserError
from hvdtrain.system.files import read_toml
from hvdtrain.system.text import printable


def read_options(path: Path) -> dict[str, Any]:
    """The options in a file, by their names in Python; paths in it are relative to the working directory.

    Raises UserError, which names file and key, for a file that cannot be read, and for unknown names and values of
    another type. Whether the values make sense together is not checked here.
    """
    where = f"--config {path}"
    try:
        content = read_toml(path)
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})", "give a TOML file with options") from None
    except UnicodeDecodeError:
        raise UserError(f"{where}: its text is not UTF-8", "save it as UTF-8, which TOML requires") from None
    except (ValueError, RecursionError) as error:
        remedy = "write a line such as lr = 0.1 for each option, with quotes around text"
        raise UserError(f"{where}: not TOML: {printable(str(error))}", remedy) from None
    values: dict[str, Any] = {}
    for written, value in content.items():
        if isinstance(value, dict):
            raise UserError(f"{where}: {written!r} is a table", "write all options at the top level, without [tables]")
        name = option_values.find(written, where)
        if name in values:
            raise UserError(f"{where}: {option_values.key(name)} is there twice, with - and with _", "keep one of them")
        values[name] = option_values.from_toml(name, value, where)
    return values
