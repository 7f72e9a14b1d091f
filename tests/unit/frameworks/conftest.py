"""The environment of each test here."""

import os
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def own_environment():
    """A learner sets variables of its framework, which end with the test."""
    with mock.patch.dict(os.environ):
        yield
