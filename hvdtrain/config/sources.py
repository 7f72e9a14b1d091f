"""Where options come from: a recipe, a recorded run, a TOML file and a command line; and what has each of them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hvdtrain.config import job_options
from hvdtrain.config import option as values
from hvdtrain.config.option import as_json, key, option
from hvdtrain.config.option_parser import OptionParser
from hvdtrain.config.options import AUTO_RESUME, Config, Framework, RuntimeOptions, from_recipe
from hvdtrain.config.recipes import RECIPES
from hvdtrain.errors import UserError
from hvdtrain.system.checkpoint_folder import check_there, run_of
from hvdtrain.system.files import read_json, read_toml
from hvdtrain.system.python_files import class_remedy, is_reference, is_script
from hvdtrain.system.start_folder import from_start
from hvdtrain.system.text import did_you_mean, printable

KINDS: dict[str, Any] = {**values.types(Config), **values.types(RuntimeOptions)}
"""The type of each option of training, by its name in Python."""
FACTS: dict[str, values.Option] = {**values.facts(Config), **values.facts(RuntimeOptions)}
"""What each option of training says about itself, by its name in Python."""
PROGRAM = (
    "Train with data parallelism: a network on images, or FILE.py:CLASS, a task of your own, which is short for "
    "--model FILE.py:CLASS."
)
SCRIPT = "Train with data parallelism by the loop of this script."
MOST_USED, ALL = "common", "all"
"""The values of --help: the options that most users need, and all."""
NOT_FOR_SCRIPTS = {"model", *(name for name, about in FACTS.items() if about.decided_by)}
"""Options that a script with a loop of its own rejects."""
REMEDY = "give a folder under runs/, or one of its checkpoints"
Options = Config | RuntimeOptions


def find(written: str, where: str) -> str:
    """The name in Python of an option of training that a user wrote with dashes or underscores.

    where: the beginning of the message of the UserError that an unknown name raises.
    """
    name = written.replace("-", "_")
    if name not in KINDS:
        if job_options.split([f"--{key(name)}"])[0]:
            reason = f"{where}: {written} is of a job, not of training"
            raise UserError(reason, "give it to train or launch as an option")
        hint = did_you_mean(key(name), map(key, KINDS))
        raise UserError(f"{where}: training has no option {written!r}{hint}", "hvdtrain train --help all lists all")
    return name


def from_text(name: str, text: str, where: str) -> Any:
    """The option's value, from a text such as one of a sweep. Raises UserError beginning with `where`."""
    given = f"{where}: {key(name)} = {text[: values.SHOWN_CHARACTERS]}"
    return values.accepted(name, text, KINDS[name], given, strict=False)


# The options of a TOML file.


def read_options(path: Path) -> dict[str, Any]:
    """The options in a file, by their names in Python; paths are relative to the folder of the start.

    Raises UserError, which names file and key, for a file that cannot be read, and for unknown names and values of
    another type. Whether the values make sense together is not checked here.
    """
    where = f"--config {path}"
    options: dict[str, Any] = {}
    for written, value in read_toml(from_start(path), where).items():
        if isinstance(value, dict):
            raise UserError(f"{where}: {written!r} is a table", "write all options at the top level, without [tables]")
        name = find(written, where)
        if name in options:
            raise UserError(f"{where}: {key(name)} is there twice, with - and with _", "keep one of them", option=name)
        options[name] = values.from_toml(name, value, KINDS[name], FACTS[name], where)
    return options


# The options of a recorded run.


@contextlib.contextmanager
def reading_record(where: str, remedy: str = REMEDY) -> Iterator[None]:
    """Around what reads a run's config.json. Raises UserError, which begins with `where`, if it cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{where}: no valid config.json of a run there, or of another version ({error})"
        raise UserError(reason, remedy, option="resume" if where.startswith("--resume") else "") from None


def recorded(path: Path) -> Config:
    """The options of the run at `path`, its folder or a checkpoint in it. Raises UserError if they are not readable."""
    check_there(path, "resume")
    with reading_record(f"--resume {path}"):
        record = read_json(run_folder(path) / "config.json")
        config, runtime = record["config"], dict(record.get("runtime", {}))
        return from_record({"score": runtime.get("score", Config.score), **config})  # where earlier versions have it


def run_folder(path: Path) -> Path:
    """The folder of the run at `path`, which is that folder or a checkpoint in it."""
    folder = path.absolute().parent
    return run_of(path) or (folder.parent if folder.name == "checkpoints" else path)


def check_recorded(folder: Path, expected: Mapping[str, Any]) -> None:
    """Raise UserError if the run in `folder` was run with other options.

    expected: those to compare, as JSON values by name, of both kinds. Options that the record lacks are not compared.
    """
    with reading_record(f"{folder}", "remove the folder, or give another --output"):
        record = read_json(folder / "config.json")
        options = {**record["config"], **record.get("runtime", {})}
    for name, value in expected.items():
        if options.get(name, value) != value:
            reason = f"{folder} was run with --{key(name)} {options[name]}, not {value}"
            raise UserError(reason, "give another --output", option=name)


def from_record(record: Any) -> Config:
    """A Config from its JSON form. Raises ValueError for what is none, UserError for values that cannot work."""
    if isinstance(record, dict) and (unknown := record.keys() - values.types(Config).keys()):  # of a later version
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return msgspec.convert(record, Config)


def to_record(options: Options) -> dict[str, Any]:
    """Options as JSON values, by name."""
    return as_json(dataclasses.asdict(options))


# The options of a command line.


@dataclass(frozen=True)
class TrainingCommand:
    """What a training command has in addition to the options of training."""

    config: tuple[Path, ...] = option((), is_repeated=True, is_common=True)
    """TOML file with options, such as lr = 0.1; the command line overrides it."""
    print_config: bool = option(False, is_switch=True)
    """Print each option with where its value came from, as a file for --config, and exit."""


@dataclass(frozen=True)
class CommandLine:
    """What a user gave to training: options on the command line, and those in the file that it names."""

    program: str
    """What --help calls the program."""
    framework: Framework | None
    """The only one that the program trains in, if any."""
    given: dict[str, Any]
    """The options on the command line, by their names in Python."""
    from_file: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, argv: list[str], program: str, framework: Framework | None) -> CommandLine:
        """Parse the arguments, and read the file of --config if there is one. Raises UserError.

        A FILE.py:NAME that the command line begins with is the value of --model.
        """
        argv = ["--model", *argv] if argv and argv[0][0:1] != "-" and is_reference(argv[0]) else argv
        try:
            if argv and is_script(argv[0]) and not is_script(program):
                remedy = f"{class_remedy(argv[0])}; a script with a loop of its own is started by python {argv[0]}"
                raise UserError(f"{argv[0]}: the class of the task is missing", remedy)
            if is_script(program) and (of_job := job_options.split(argv)[0]):
                remedy = f"start them by hvdtrain launch local -n N -- python {program}"
                raise UserError(f"{of_job[0]}: a script with a loop of its own starts no ranks", remedy)
            given = training_parser(program).parse(argv)
        except UserError:
            if not {"-h", "--help"} & set(argv):
                for before, word in itertools.pairwise(argv):
                    if is_reference(word) and not before.startswith("-"):
                        raise UserError(f"{word}: the task comes first", f"give {program} {word} OPTIONS") from None
                raise
            given = {"help": ALL if ALL in argv else MOST_USED}  # of a command line that is to be corrected
        paths = given.get("config", ())
        if len(paths) > 1:
            remedy = "give one file, and other options on the command line"
            raise UserError("--config is given twice", remedy, option="config")
        return cls(program, framework, given, read_options(paths[0]) if paths else {})

    @property
    def path(self) -> Path | None:
        return next(iter(self.given.get("config", ())), None)

    @property
    def values(self) -> dict[str, Any]:
        """The options that were given: those of the command line, then those of the file; several settings together."""
        both = {**self.from_file, **self.given}
        several = [name for name in self.from_file.keys() & self.given.keys() if isinstance(both[name], tuple)]
        return {**both, **{name: self.from_file[name] + self.given[name] for name in several}}

    def defaults(self) -> Config:
        """The defaults of options: those of the run to resume, or of the recipe."""
        given, resumed = self.values, self._resumed
        with self._locating():
            if resumed and given.get("weights"):
                reason = f"--weights: the run to resume has its own weights, those of {resumed}"
                raise UserError(reason, "leave out --weights, or begin a run without --resume", option="weights")
            config = recorded(resumed) if resumed else from_recipe(given.get("recipe", "digits"))
        return dataclasses.replace(config, framework=self.framework) if self.framework else config

    def options(self) -> tuple[Config, RuntimeOptions]:
        """The options of training. Raises UserError for values that cannot work."""
        config, given = self.defaults(), self.values
        with self._locating():
            config = dataclasses.replace(config, **_of(Config, {**given, "arg": config.arg + given.get("arg", ())}))
            runtime = RuntimeOptions(**_of(RuntimeOptions, given))
            if self.framework and config.framework != self.framework:
                other = f"use python -m hvdtrain.{config.framework}_lenet"
                reason = f"--framework {config.framework}: {self.program} trains in {self.framework}"
                remedy = "leave it out" if is_script(self.program) else other
                raise UserError(reason, remedy, option="framework")
        return config, runtime

    @property
    def _resumed(self) -> Path | None:
        """The run, or the checkpoint, that --resume names."""
        path = self.values.get("resume")
        return None if path in (None, AUTO_RESUME) else from_start(path)

    def help(self) -> str:
        """The text of --help, with the defaults of this recipe or run."""
        return training_parser(self.program, self.defaults(), self.given.get("help") == ALL).format_help()

    def to_toml(self) -> str:
        """The options as TOML, which --config reads: a line for each with its value, and as a comment its origin.

        Values that are not set are comments. Raises UserError for text that no TOML file can hold.
        """
        config, runtime = self.options()
        sources = self.origins()
        entries = [
            (_entry(name, getattr(options, name)), printable(sources[name]))
            for options in (config, runtime)
            for name in values.facts(type(options))
        ]
        width = min(max(len(entry) for entry, _ in entries), 40)
        return "".join(f"{entry:{width}}  # {source}\n" for entry, source in entries)

    def origins(self) -> dict[str, str]:
        """Where the value of each option comes from: the last of these that has it."""
        given = self.values
        origins = dict.fromkeys(KINDS, "default")
        if resumed := self._resumed:
            origins |= dict.fromkeys(values.facts(Config), f"run {resumed}")
        else:
            recipe = given.get("recipe", "digits")
            origins |= dict.fromkeys(RECIPES[recipe], f"recipe {recipe}")
        origins |= {"framework": "entry point"} if self.framework else {}
        origins |= dict.fromkeys(self.from_file, f"file {self.path}")
        return origins | dict.fromkeys(self.given.keys() & KINDS.keys(), "command line")

    @contextlib.contextmanager
    def _locating(self) -> Iterator[None]:
        """An error of an option whose value is from the file names the file."""
        try:
            yield
        except UserError as error:
            if error.option in self.from_file and error.option not in self.given:
                error.reason = f"--config {self.path}: {error.reason}"
            raise


def training_parser(program: str, defaults: Config | None = None, shows_all: bool = True) -> OptionParser:
    """The parser of a training command line. defaults: those that --help shows. shows_all: else only common options."""
    is_of_script = is_script(program)
    parents = [] if is_of_script else [job_options.options_of_training(shows_all)]
    about = SCRIPT if is_of_script else PROGRAM
    parser = OptionParser(program, about, add_help=False, parents=parents)
    parser.full_help = f"--help {ALL}"
    if not is_of_script:
        parser.usage = f"{program} [FILE.py:CLASS] [OPTIONS]"
    hidden = NOT_FOR_SCRIPTS if is_of_script else set()
    if not shows_all:
        hidden = hidden | {
            name for name, about in {**FACTS, **values.facts(TrainingCommand)}.items() if not about.is_common
        }
        parser.epilog = f"{program} {parser.full_help} lists all options."
    # The caller prints: on one rank, and with the defaults of the recipe or the run.
    parser.add_argument("-h", "--help", nargs="?", choices=(MOST_USED, ALL), const=MOST_USED, metavar=ALL,
                        default=argparse.SUPPRESS, help="Show this text, or of all options, and exit.")  # fmt: skip
    parser.add(TrainingCommand, hidden=hidden)
    parser.add(Config, defaults, hidden)
    parser.add(RuntimeOptions, hidden=hidden)
    return parser


def _of(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in values.facts(kind)}


def _entry(name: str, value: object) -> str:
    if value is None:
        return f"# {key(name)} ="
    assert isinstance(value, str | int | float | Path | tuple)
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = f"--{key(name)} {text}: is not UTF-8, as TOML is"
        raise UserError(reason, "rename it, or leave out --print-config", option=name) from None
    return f"{key(name)} = {values.to_toml(value)}"
