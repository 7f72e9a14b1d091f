"""Objects in the user's Python files, by FILE.py:NAME."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import traceback
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.system.start_folder import from_start
from hvdtrain.system.text import did_you_mean


def is_reference(text: str) -> bool:
    """Whether the text has the form FILE.py:NAME."""
    path, _, name = text.rpartition(":")
    return is_script(path) and name.isidentifier()


def is_script(text: str) -> bool:
    """Whether the text has the form FILE.py."""
    return text.endswith(".py")


def class_remedy(path: str) -> str:
    """What to give in place of FILE.py; names the classes of the file, which does not run."""
    classes: list[str] = []
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
        tree = ast.parse(Path(os.path.expanduser(path)).read_bytes())
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return f"give {' or '.join(f'{path}:{name}' for name in classes) or f'{path}:CLASS'}"


def load_object(reference: str, option: str) -> Any:
    """The object that FILE.py:NAME refers to; runs the file. It can import what lies in its own folder.

    option: names it in messages. Raises UserError if the file does not exist, fails, or has no such name.
    """
    file, _, name = reference.rpartition(":")
    path = from_start(os.path.expanduser(file))
    problem = f"there is no file {file}"
    if path.is_file():
        module = _load(path, option)
        if hasattr(module, name):
            return getattr(module, name)
        public = [known for known in vars(module) if not known.startswith("_")]
        problem = f"{file} has no {name}{did_you_mean(name, public)}"
    raise UserError(f"{option}: {problem}", "give FILE.py:NAME")


def _load(path: Path, option: str) -> ModuleType:
    """The file as a module of its own, which is loaded once."""
    name = f"hvdtrain_user_{path.stem}_{zlib.crc32(bytes(path)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader  # a path that ends with .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that it hides no installed module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{option}: {_place(path, error)}", "correct the file") from error
    return module


def _place(path: Path, error: BaseException) -> str:
    """What failed, and in which line of the file."""
    message = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {message}"
