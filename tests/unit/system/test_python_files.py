"""Objects in users' Python files, by FILE.py:NAME, and the part of a traceback that a user wrote."""

import json
import sys

import pytest

from hvdtrain.errors import UserError
from hvdtrain.system.python_files import MAX_CHARACTERS, PACKAGE, is_reference, load_object, user_lines
from hvdtrain.system.run_end import Failure

FILE = """import json
def outer(value):
    return inner(value)
def inner(value):
    return json.loads(value)
def chained(value):
    try:
        inner(value)
    except ValueError as error:
        raise KeyError(value) from error
def recursive(value, depth=0):
    names = "x" * 80
    return other(value, depth)
def other(value, depth):
    return recursive(value, depth + 1)
"""


@pytest.fixture
def error_of(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)

    def raised(name):
        with pytest.raises(Exception) as caught:
            load_object(f"{tmp_path / 'mine.py'}:{name}", "--model")("[")
        return caught.value

    yield raised
    sys.path.remove(str(tmp_path))


def test_frames_begin_in_the_users_file_and_end_where_it_failed(error_of):
    lines = user_lines(error_of("outer"))
    assert lines[0] == "Traceback (most recent call last):"
    frames = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File")]
    assert frames[:4] == ["raised", "outer", "inner", "loads"]  # the first is this test's
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


def test_an_error_that_followed_from_another_one_shows_both(error_of):
    text = "\n".join(user_lines(error_of("chained")))
    assert text.count("Traceback") == 2 and "direct cause" in text
    assert str(PACKAGE) not in text


def test_a_recursion_is_shown_from_both_ends(error_of):
    lines = user_lines(error_of("recursive"))
    assert sum(map(len, lines)) < 1.1 * MAX_CHARACTERS
    assert lines[0].startswith("Traceback") and lines[-1].startswith("RecursionError")


def test_an_error_of_hvdtrain_or_a_library_has_none():
    with pytest.raises(ValueError) as caught:
        json.loads("[")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert user_lines(caught.value) == ()


def test_an_error_of_syntax_shows_the_line_and_a_caret(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\ny = (2\n")
    with pytest.raises(UserError) as caught:
        load_object(f"{tmp_path / 'broken.py'}:Task", "--model t")
    sys.path.remove(str(tmp_path))
    failure = Failure.of_exception(caught.value)
    assert failure.traceback[0].strip().endswith("line 2")
    assert failure.traceback[1].strip() == "y = (2" and failure.traceback[2].strip() == "^"
    assert failure.message(False).splitlines()[1:] == [f"  {line}" for line in failure.traceback]


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
