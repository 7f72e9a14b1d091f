"""A process that loads the data by itself and reads rows for a rank, where Python's lock would keep threads waiting."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import subprocess
import sys
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hvdtrain.datasets.formats.reading import one_line
from hvdtrain.errors import HvdtrainError, TrainingError
from hvdtrain.interfaces.reading import Draw, Rows, Source
from hvdtrain.system import start_folder
from hvdtrain.system.processes import describe_status, end_with_parent
from hvdtrain.system.python_files import user_lines

START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']\n"
    "from hvdtrain.datasets import worker; worker.main()"
)
"""With the rank's own search path, so that it imports what the rank does."""
LOAD_DATASET = "hvdtrain.datasets.registry:load_dataset"
END_S = 5.0
"""How long a process that no longer answers may take to end."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, which is its text: the cause of the error that the rank gets."""

    user_lines: tuple[str, ...] = ()
    """See `system.python_files.user_lines`."""

    def __str__(self) -> str:
        return f"in a process that reads data\n{self.args[0]}"


class WorkerProcess:
    """One process, as the rank sees it.

    loader_spec: the arguments of a function that returns a `Dataset`, as JSON has them, and as `loader` its name, by
    default LOAD_DATASET.
    Create it in the main thread: the kernel ends the process when the thread that started it ends.
    """

    def __init__(self, loader_spec: dict[str, Any]) -> None:
        # A new program by exec, not a fork of this process: after MPI_Init a fork shares memory that is registered
        # with the network, and copies the locks of threads of Horovod and of the framework in whatever state they are.
        self._connection, theirs = Pipe()
        what = {
            "path": sys.path,
            "loader_spec": loader_spec,
            "fd": theirs.fileno(),
            "parent": os.getpid(),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps(what)],
            stdin=subprocess.DEVNULL,
            cwd=start_folder.START or None,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C in the terminal is for the rank, which ends this process
        )
        theirs.close()

    def wait_until_loaded(self) -> None:
        """Wait until the process can read. Raises what loading the data raised there."""
        self.read("train", np.zeros(0, np.int64), Draw(0, 0))

    def read(self, part: str, rows: np.ndarray, draw: Draw) -> Rows:
        """Rows of a part. Raises what reading them raised there; TrainingError if the process ended."""
        try:
            self._connection.send((part, rows, draw))
            answer, cause = self._connection.recv()
        except (OSError, EOFError):
            status = self._process.wait(END_S)
            raise TrainingError(
                f"a process that reads data {describe_status(status)}",
                "look for its message above, and for a lack of memory in dmesg; --workers 0 reads without processes",
            ) from None
        if isinstance(answer, Exception):
            raise answer from cause
        return answer

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of a process that was killed."""
        self._process.wait()
        self._connection.close()


def main() -> None:
    """Read what the rank asks for, until it ends."""
    what = json.loads(sys.argv[1])
    end_with_parent()
    if os.getppid() != what["parent"]:  # it ended before the line above
        return
    connection, problem = Connection(what["fd"]), None
    try:
        arguments = {"loader": LOAD_DATASET, **what["loader_spec"]}
        sources = pkgutil.resolve_name(arguments.pop("loader"))(**arguments).parts
    except Exception as error:
        problem = _as_error(error)
    with contextlib.suppress(EOFError, OSError):  # the rank ended
        while True:
            part, rows, draw = connection.recv()
            connection.send(problem or _read(sources[part], rows, draw))


def _read(source: Source, rows: np.ndarray, draw: Draw) -> tuple[Rows | HvdtrainError, WorkerTraceback | None]:
    """The rows, no arrays for no rows; or what reading them raised, and its cause."""
    try:
        return source.read(rows, draw) if len(rows) else Rows(()), None
    except Exception as error:
        return _as_error(error)


def _as_error(error: Exception) -> tuple[HvdtrainError, WorkerTraceback | None]:
    """An error that the rank knows, and its cause: that of an error of hvdtrain's, or an exception of the user's."""
    known = error if isinstance(error, HvdtrainError) else TrainingError(one_line(error))
    origin = error.__cause__ if known is error else error
    if not origin:
        return known, None
    cause = WorkerTraceback("".join(traceback.format_exception(origin)))
    cause.user_lines = user_lines(origin)
    return known, cause
