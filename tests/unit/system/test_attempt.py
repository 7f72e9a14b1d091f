"""A trial in a copy of the process: its output, its exceptions and signals, and nothing of it stays."""

import os
import signal
import threading
import time

import pytest

from hvdtrain.system import attempt
from hvdtrain.system.attempt import AttemptEnd


def test_what_works_has_its_output_and_no_problem():
    before = dict(os.environ)
    tried = attempt.attempt(lambda: os.environ.pop("PATH") and print("found"))
    assert tried == (0, "found\n") and tried.problem == ""
    assert dict(os.environ) == before


class BadError(Exception):
    pass


def fail(text):
    raise BadError(text)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: fail("so it is"), "BadError: so it is"),
        (lambda: fail("Traceback:\n  a file\nBadError: so it is"), "BadError: so it is"),
        (lambda: fail("{{node a}} so it is"), "BadError: so it is"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "it was killed by SIGSEGV"),
        (lambda: os._exit(3), "no reason given"),
    ],
)
def test_what_fails_says_why_in_one_line(function, problem, capfd):
    assert attempt.attempt(function).problem == problem
    assert capfd.readouterr() == ("", "")


def test_what_does_not_end_is_not_known(monkeypatch):
    monkeypatch.setattr(attempt, "LIMIT_S", 1)
    tried = attempt.attempt(lambda: time.sleep(100))
    assert tried.status == -signal.SIGALRM and tried.problem == ""


def test_in_a_thread_of_a_process_that_handles_signals(monkeypatch):
    monkeypatch.setattr(attempt, "LIMIT_S", 1)
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    found = []
    try:
        thread = threading.Thread(target=lambda: found.append(attempt.attempt(lambda: time.sleep(100))))
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert found == [AttemptEnd(-signal.SIGALRM, "")]
