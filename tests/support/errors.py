"""Errors that users see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvdtrain.errors import UserError


def refused(call: Callable[[], object], *texts: str, option: str | None = None) -> UserError:
    """The error of a call: one line that contains these texts and says what to do. option: the one that it names."""
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text and caught.value.remedy and caught.value.exit_status == 2, text
    for expected in texts:
        assert expected in text, text
    assert option is None or caught.value.option == option, text
    return caught.value
