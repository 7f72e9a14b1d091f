"""How every command ends: with an exit status, and for an error with one line on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hvdtrain.errors import INTERRUPTED, HvdtrainError
from hvdtrain.system import agent_pipe
from hvdtrain.system.run_end import Failure
from hvdtrain.system.streams import output_errors, prepare_streams
from hvdtrain.system.text import printable


@contextlib.contextmanager
def exit_status() -> Iterator[None]:
    """Decorates a command: an HvdtrainError is printed on one line, and its exit status is that of the process.

    This includes errors of standard output, which is flushed at the end.
    """
    prepare_streams()
    try:
        with output_errors():
            yield
    except HvdtrainError as error:
        if error.reason:
            agent_pipe.send(Failure.of_exception(error))
            print(f"hvdtrain: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("hvdtrain: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
