"""Functions in processes that are forked, which end with them."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def end_with(function: Callable[[], int | None], status: int = 1) -> NoReturn:
    """End this process with the status that a function returns or that of `SystemExit`, after an error with this."""
    try:
        status = function() or 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
