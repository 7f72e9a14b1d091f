"""The user's Python files: objects in them, by FILE.py:NAME, and the part of a traceback that the user wrote."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import sysconfig
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


PACKAGE = Path(__file__).parents[1]
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
INSTALLED = ("site-packages", "dist-packages")
MAX_CHARACTERS = 6000
"""Of all lines: what a rank says to its agent has to fit into a pipe. A recursion has more."""


def user_lines(error: BaseException) -> tuple[str, ...]:
    """The lines of the traceback of an exception in a user's code; none where no frame of it is the user's.

    Errors of syntax have no frame, but the line and a caret. An exception of another process has an attribute
    `user_lines`, which that process made.
    """
    known = getattr(error, "user_lines", None)
    if isinstance(known, tuple):
        return known
    summary = traceback.TracebackException.from_exception(error)
    if not _keep_users(summary) and not isinstance(error, SyntaxError):
        return ()
    return _shortened([line for text in summary.format() for line in text.rstrip("\n").split("\n")])


def _keep_users(summary: traceback.TracebackException) -> bool:
    """Remove the other frames of an exception, and of those that led to it; whether its own has some left."""
    for other in (summary.__cause__, summary.__context__):
        if other:
            _keep_users(other)
    frames = list(summary.stack)
    first = next((number for number, frame in enumerate(frames) if _is_users(frame.filename)), len(frames))
    kept = [frame for frame in frames[first:] if not _is_hidden(frame.filename)]
    summary.stack[:] = kept
    return bool(kept)


def _is_users(file: str) -> bool:
    """Whether it is neither hvdtrain's, nor Python's, nor that of an installed package."""
    is_library = file.startswith(tuple(f"{path}{os.sep}" for path in LIBRARIES)) or file.startswith("<")
    return not (is_library or Path(file).is_relative_to(PACKAGE) or set(INSTALLED) & set(Path(file).parts))


def _is_hidden(file: str) -> bool:
    return Path(file).is_relative_to(PACKAGE) or file.startswith("<frozen ")


def _shortened(lines: list[str]) -> tuple[str, ...]:
    """At most MAX_CHARACTERS of the lines, from both ends."""
    text, half = "\n".join(lines), MAX_CHARACTERS // 2
    if len(text) <= MAX_CHARACTERS:
        return tuple(lines)
    return (*text[:half].split("\n"), "  ...", *text[-half:].split("\n"))
