"""`make fuzz`: each property gets new examples for FUZZ_MINUTES, and no parser takes all memory."""

from __future__ import annotations

import logging
import os
import resource
import time

import pytest

from fuzz.properties import LONG

ADDRESS_SPACE_BYTES = 6 << 30
"""A parser that takes more gets a MemoryError; the machine is not affected."""


@pytest.fixture(autouse=True, scope="session")
def limited_memory():
    if LONG:
        logging.disable()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, most))  # a framework may lift it again


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not LONG:
        return None
    until = time.monotonic() + 60 * float(os.environ["FUZZ_MINUTES"])
    while time.monotonic() < until:
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    return True
