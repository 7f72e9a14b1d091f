"""One browser for the tests of pages."""

import pytest
from support.browser import NAMES, Browser, find_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if not find_browser():
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is on PATH (Debian: apt-get install chromium)")
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
