"""Made-up packages for the tests of checks."""

from __future__ import annotations

import pytest
from support.made_up_packages import Environment


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Environment:
    return Environment(tmp_path, monkeypatch)
