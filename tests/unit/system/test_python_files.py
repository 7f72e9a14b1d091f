"""Objects in Python files, by FILE.py:NAME."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UserError
from hvdtrain.system.python_files import class_arguments, is_reference, load_object


def test_references():
    assert is_reference("a/b.py:NAME")
    assert not any(map(is_reference, ("lenet", "net.toml", "a.py", "a.py:", "a.py:1x", ":NAME", "a:NAME")))


def test_an_object_and_what_lies_beside_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", ["/nowhere"])
    (tmp_path / "beside_of_test.py").write_text("VALUE = 41\n")
    (tmp_path / "own.py").write_text("from beside_of_test import VALUE\nCOUNT = []\nANSWER = VALUE + 1\n")
    assert load_object(f"{tmp_path}/own.py:ANSWER", "--model") == 42
    first = load_object(f"{tmp_path}/own.py:COUNT", "--model")
    assert load_object(f"{tmp_path}/own.py:COUNT", "--model") is first, "the file ran twice"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x = (\n", "line 1: SyntaxError"),
        ("x = 1\n\ny = z\n", "line 3: NameError: name 'z' is not defined"),
        ("import no_such_module_anywhere\n", "line 1: ModuleNotFoundError"),
        (None, "there is no file"),
        ("Task = 1\n", "has no task (did you mean Task?)"),
        ("def f():\n    raise ValueError('two\\nlines')\n\n\nf()\n", "line 2: ValueError: two lines"),
    ],
)
def test_files_that_fail(content, text, tmp_path):
    if content is not None:
        (tmp_path / "own.py").write_text(content)
    with pytest.raises(UserError, match="--model: ") as caught:
        load_object(f"{tmp_path}/own.py:task", "--model")
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_arguments_of_a_class_are_read_without_running_its_file(tmp_path):
    path = tmp_path / "mytask.py"
    path.write_text(
        "raise SystemExit\n"
        "class Task:\n    def __init__(self, width=8, *, level: float = 1.0): pass\n"
        "@dataclass\nclass Data:\n    depth: int = 2\n    rate: float = 0.1\n"
        "class Derived(Task): pass\n"
    )
    assert class_arguments(f"{path}:Task") == ["width", "level"]
    assert class_arguments(f"{path}:Data") == ["depth", "rate"]
    assert class_arguments(f"{path}:Derived") == class_arguments(f"{path}:Other") == []
    path.write_text("class (")
    assert class_arguments(f"{path}:Task") == class_arguments(f"{tmp_path / 'missing.py'}:Task") == []
