"""A command: its options, its output in whole lines, and its end with an exit status, for an error after one line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hvdtrain.errors import INTERRUPTED, HvdtrainError, UserError
from hvdtrain.system import agent_pipe
from hvdtrain.system.files import NOT_LOCAL, is_url
from hvdtrain.system.rank_info import LAUNCH, VARIABLES
from hvdtrain.system.run_end import Failure
from hvdtrain.system.text import did_you_mean, printable


class Parser(argparse.ArgumentParser):
    """argparse's parser: an invalid command line raises UserError, with suggestions for misspelt options and choices.

    Options may be between positional arguments.
    """

    _given: Sequence[str] = ()
    full_help = "--help"
    """What lists all options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.register("type", Path, _local_path)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UserError for invalid ones."""
        for parser in self._parsers():
            parser._given = args or ()
        rest = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions)
        parse = super().parse_args if rest else super().parse_intermixed_args
        return parse(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Print, and unlike argparse raise OSError if that fails."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        hint = "".join(f"; {name} is not an option{meant}" for name, meant in self._misspelt())
        raise UserError(message + hint, f"{self.prog} {self.full_help} lists the options")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            where = " ".join([*action.option_strings[-1:], str(value)])
            reason = f"{where}: no such choice{did_you_mean(str(value), choices)}"
            raise UserError(reason, f"choose one of {', '.join(choices)}", option=action.dest)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse makes of `--option=--`: in older Pythons an empty list, in newer ones the text.
        if action.option_strings and "--" in arg_strings:
            self.error(f"argument {action.option_strings[-1]}: expected one argument")
        return super()._get_values(action, arg_strings)

    def all_actions(self) -> Iterator[argparse.Action]:
        """Options and positional arguments of this parser, and of the commands below it."""
        for parser in self._parsers():
            yield from parser._actions

    def _parsers(self) -> Iterator[Parser]:
        """This parser, and those of the commands below it."""
        yield self
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._parsers()

    def _misspelt(self) -> Iterator[tuple[str, str]]:
        """The options given that do not exist but are close to one that does, and that one."""
        known = {name for action in self.all_actions() for name in action.option_strings}
        end = self._given.index("--") if "--" in self._given else len(self._given)
        for name in (word.partition("=")[0] for word in self._given[:end]):
            if name.startswith("--") and name not in known and (meant := did_you_mean(name, known)):
                yield name, meant


def joined(words: list[str], option: str) -> list[str]:
    """The words with each `option VALUE` as `option=VALUE`: argparse takes a value with a dash for another option."""
    made = list(words)
    while option in made[:-1]:
        at = made.index(option)
        made[at : at + 2] = [f"{option}={made[at + 1]}"]
    return made


def dashed(word: str) -> str:
    """An argument; if it is an option, with dashes in its name."""
    name, sign, value = word.partition("=")
    return f"{name.replace('_', '-')}{sign}{value}" if name.startswith("--") else word


def _local_path(text: str) -> Path:
    if is_url(text):
        raise argparse.ArgumentTypeError(f"{text} {NOT_LOCAL}")
    return Path(text)


CLOSED_PIPE_STATUS = 128 + signal.SIGPIPE
"""What a shell reports of a program that SIGPIPE ended."""


class OutputError(HvdtrainError):
    """Standard output does not accept what a command prints; without a text if its reader is gone (`| head`)."""

    def __init__(self, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            super().__init__("")
            self.exit_status = CLOSED_PIPE_STATUS
        else:
            super().__init__(f"standard output cannot be written ({error.strerror})", "redirect it to another file")


class OutputFile(io.FileIO):
    """The file of a standard stream, without a buffer. What standard error does not accept is lost."""

    failure: OSError | None = None
    """The newest error of standard output."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        try:
            while rest:
                written = super().write(rest)
                if written is None:  # somebody else made the terminal non-blocking
                    select.select([], [self], [])
                rest = rest[written or 0 :]
        except OSError as error:
            if self.fileno() != sys.__stderr__.fileno():  # type: ignore[union-attr]
                self.failure = error
                raise
        return len(data)

    def isatty(self) -> bool:
        return super().isatty() and suits_colors(os.environ)


def suits_colors(environment: Mapping[str, str]) -> bool:
    """Whether a terminal takes colors and progress bars: not a dumb one, nor the one that Open MPI gives to rank 0.

    Open MPI reads what is written there and passes it on, perhaps to a file.
    """
    by_mpirun = VARIABLES["mpirun"][0] in environment and VARIABLES[LAUNCH][0] not in environment
    return environment.get("TERM") != "dumb" and not by_mpirun


class LineStream(io.TextIOWrapper):
    """Text in whole lines; the beginning of a line waits for its end, or for `flush`."""

    def write(self, text: str) -> int:
        lines, end, rest = text.rpartition("\n")
        if end:
            super().write(lines + end)
            self.flush()
        super().write(rest)
        return len(text)


def prepare_streams() -> None:
    """Let standard output and standard error write whole lines.

    Streams that a program has replaced stay as they are; a closed one (`>&-`) becomes /dev/null.
    """
    for name in ("stdout", "stderr"):
        stream, original = getattr(sys, name), getattr(sys, f"__{name}__")
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the process ends)
        elif stream is original:
            stream.flush()
            file = OutputFile(stream.fileno(), "w", closefd=False)
            setattr(sys, name, LineStream(file, encoding=stream.encoding, errors="backslashreplace"))


def end_with_reader() -> None:
    """End this process when nobody reads its standard output any more, as ssh without a terminal sends no signal."""
    hung_up = select.poll()
    if not os.isatty(1):  # of a terminal, the kernel sends SIGHUP
        hung_up.register(1, 0)
    threading.Thread(target=lambda: hung_up.poll() and os._exit(128 + signal.SIGPIPE), daemon=True).start()


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """Flush standard output at the end; turn its errors into OutputError."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        file = getattr(sys.stdout, "buffer", None)
        if isinstance(file, OutputFile) and error is file.failure:
            raise OutputError(error) from None
        raise


@contextlib.contextmanager
def exit_status() -> Iterator[None]:
    """Decorates a command: an HvdtrainError is printed on one line, and its exit status is that of the process.

    This includes errors of standard output, which is flushed at the end.
    """
    prepare_streams()
    try:
        with output_errors():
            yield
    except Exception as error:
        from hvdtrain.system.stacks import known_error  # what it imports takes long

        if not (known := known_error(error)):
            raise
        failure = Failure.of_exception(known)
        if known.reason and not agent_pipe.send(failure):  # then the launcher prints it
            print(f"hvdtrain: {printable(str(known))}{failure.indented_traceback}", file=sys.stderr)
        sys.exit(known.exit_status)
    except KeyboardInterrupt:
        print("hvdtrain: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
