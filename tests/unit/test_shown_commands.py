"""Each command line of hvdtrain in pages, scripts and comments is one that its parsers take.

Processes: one for each framework, which lists its strategies.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from support.jobs import ROOT
from support.stack import FRAMEWORKS, INSTALLED

from hvdtrain.cli import COMMANDS, launch_options, sweep_settings
from hvdtrain.config import job_options, sources
from hvdtrain.config.option_parser import OptionParser
from hvdtrain.errors import UserError
from hvdtrain.jobs.own_program import without_program
from hvdtrain.measure.bench.strategies import BenchRow, all_rows, choose
from hvdtrain.system.command import Parser, joined

PATTERNS = ("*.md", "docs/*.md", "examples/*.md", "examples/*.py", "tests/*/README.md", "launch/*", "docker/*")
PATTERNS += ("Makefile", ".github/**/*.*", ".ci/*", "setup/*.sh")
FILES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern)) if path.is_file()]

ENTRY = re.compile(r"hvdtrain\.(torch|mxnet|tensorflow)_lenet")
WRAPPER = re.compile(r"launch/(local|horovodrun|mpirun|srun)\.sh")
REST = "..."
"""In place of words that a line leaves to the reader, or to a variable."""
PLACEHOLDERS = {
    "N": "2",
    "SHELL": "bash",
    **dict.fromkeys(("OPTIONS", "[OPTIONS]", "ARGUMENTS...", "COMMAND..."), REST),
}
VARIABLES = {
    r"\$[({]\w*(framework|trained)[\w\[\]]*[)}]|FRAMEWORK(?=_lenet)": "torch",
    r"CMD='([^']*)'": r"; \1",  # of make docker-run
    r"\$\(NP\)|\"?\$np\"?": "2",
    r"\"?\$(\w+|@|[({][\w@\[\]]+[)}])\"?": REST,
}
SHELL = set("|&;()<>")
INCOMPLETE = ("the following arguments are required", "expected one argument")


class Shown(NamedTuple):
    line: int
    text: str
    is_whole: bool
    """Whether it is a line to run; a sentence or a comment may name a command without what it requires."""


def shown(path: Path) -> Iterator[Shown]:
    """The code of a file: of a page, what is indented, in a fence or quoted; of others each line."""
    text, is_page = path.read_text(), path.suffix == ".md"
    if path.suffix == ".yaml":  # a command as a list
        text = re.sub(r"\n *- (?=[^:\n]+$)", "\\\n", text, flags=re.M)
    for span in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield Shown(text.count("\n", 0, span.start()) + 1, " ".join(span[1].split()), False)
    number, is_fenced = 1, False
    for line in re.split(r"(?<!\\)\n", text):
        is_fenced ^= line.lstrip().startswith("```")
        if "`" not in line and (not is_page or is_fenced or line.startswith("    ")):
            comment, code = re.match(r"\s*(# +)?(.*)", re.sub(r"\\\n[\s#]*", " ", line), re.S).groups()
            yield Shown(number, code, not comment)
        number += 1 + line.count("\n")


def alternatives(code: str) -> list[str]:
    """A line for each word of {ONE,OTHER}."""
    found = re.search(r"\{(\w+(?:,\w+)+)\}", code)
    return [code.replace(found[0], word) for word in found[1].split(",")] if found else [code]


def words_of(code: str) -> list[str]:
    """The words of a line of a shell, a Makefile or a list in JSON, without its variables."""
    code = code.replace('", "', " ")
    for variable, value in VARIABLES.items():
        code = re.sub(variable, value, code)
    for text in (code, re.sub("['\"]", "", code)):  # an apostrophe in a sentence
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        with contextlib.suppress(ValueError):
            return list(lexer)
    return []


def commands(words: list[str]) -> Iterator[list[str]]:
    """Each command of hvdtrain, whatever starts it, from its name on up to where a shell sees its end."""
    ends = [at for at, word in enumerate(words) if set(word) <= SHELL]
    for at, word in enumerate(words):
        before, after = words[at - 1] if at else "", [*words[at + 1 :], ""][0]
        starts = set(before) <= SHELL
        rest = words[at + 1 : next((end for end in ends if end > at), None)]
        is_own = before in ("-m", "--", "--no-python") or after in COMMANDS or (starts and after[:1] == "-")
        if Path(word).name == "hvdtrain" and is_own and rest:
            yield rest
        elif before == "-m" and ENTRY.fullmatch(word):
            yield [word, *rest]
        elif starts and (wrapper := WRAPPER.fullmatch(word)):
            yield ["launch", wrapper[1], *rest]
        else:
            continue
        if "--" in rest:  # what follows is checked as a part of this command
            return


def check(words: list[str], is_whole: bool = True) -> None:
    """Parse a command, and the one that it starts. Raises UserError."""
    words = [PLACEHOLDERS.get(word, word) for word in words]
    words = ["launch", "local", *words[2:]] if words[:2] == ["launch", REST] else words
    name, *rest = [word for word in words if word != REST] or ["--help"]
    if not rest and not is_whole and name in COMMANDS:
        return
    try:
        parse(name, rest)
    except UserError as error:
        if (is_whole and REST not in words) or not any(text in error.reason for text in INCOMPLETE):
            raise
        known = {option for action in parser_for(name).all_actions() for option in action.option_strings}
        if unknown := {word.partition("=")[0] for word in rest if word.startswith("--")} - known - {"--"}:
            raise UserError(f"{name} has no {unknown}", error.remedy) from None


def parser_for(command: str) -> Parser:
    return importlib.import_module(f"hvdtrain.cli.{command}").parser()


def parse(name: str, rest: list[str]) -> None:
    entry = ENTRY.fullmatch(name)
    if entry or name == "train":
        parse_training(rest, entry[1] if entry else None)
    elif name == "launch":
        for command in commands(launch_options.parse(rest).program):
            check(command)
    elif name == "sweep":
        end = rest.index("--") if "--" in rest else len(rest)
        trial = without_program(rest[end + 1 :])
        sweep_settings.parse_settings(sweep_settings.parse(rest[:end]), trial)
        check(trial or ["train"])
    elif name == "bench":
        wanted = parser_for(name).parse(rest).get("rows", ())
        choose(rows(), tuple(row for row in wanted if row.partition("/")[0] not in {*FRAMEWORKS} - {*INSTALLED}))
    elif name in COMMANDS:
        parser = parser_for(name)
        parser.parse(rest) if isinstance(parser, OptionParser) else parser.parse_args(joined(rest, "--sort"))
    elif name not in ("--help", "--version"):
        raise UserError(f"{name} is not a command", "hvdtrain --help lists them")


def parse_training(words: list[str], framework: Any) -> None:
    """Options of a job and of training, without reading the files and the runs that they name."""
    if of_job := launch_options.of_training(words, ["hvdtrain", "train"]):
        launch_options.parse(of_job)
    no_run = mock.patch.object(sources.CommandLine, "_resumed", None)
    with no_run, mock.patch.object(sources, "read_options", return_value={}):
        line = sources.CommandLine.read(job_options.split(words)[1], "hvdtrain train", framework)
        if "help" not in (*line.values, line.values.get("strategy")):
            config, _ = line.options()
            names = {row.strategy for row in rows() if row.framework == config.framework}
            if config.strategy not in names and config.framework in INSTALLED:
                raise UserError(f"{config.framework} has no strategy {config.strategy}", "--strategy help lists them")


@functools.cache
def rows() -> list[BenchRow]:
    """Each strategy of each framework, which processes of their own list: frameworks conflict in one."""
    return all_rows()


def test_commands_are_found_wherever_they_are_written():
    files = [ROOT / name for name in ("README.md", "Makefile", "docker/image.sh", "launch/mpijob.yaml")]
    found = [command for path in files for _, text, _ in shown(path) for command in commands(words_of(text))]
    names = [command[0] for command in found]
    assert names.count("hvdtrain.torch_lenet") >= 7 and names.count("launch") >= 3, found
    assert names.count("doctor") >= 3 and {"train", "sweep", "watch", "predict", "export", "bench"} <= {*names}, found


def errors(path: Path) -> Iterator[str]:
    for line, text, is_whole in shown(path):
        for command in (command for code in alternatives(text) for command in commands(words_of(code))):
            try:
                check(command, is_whole)
            except UserError as error:
                yield f"{path}:{line}: {' '.join(command)}: {error.reason}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_command_is_one_that_the_parsers_take(path, monkeypatch):
    for name in ("SLURM_JOB_NODELIST", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    assert list(errors(path)) == []


WRONG = {
    "a check that went": ["RUN python -m hvdtrain doctor --only python versions \\", " && true"],
    "an option": ["    mpirun -np 2 python -m hvdtrain.torch_lenet --epoch 3  # one's own"],
    "an option of a sentence": ["Give `hvdtrain launch ... --restart 3` instead."],
    "a value": ["    hvdtrain launch horovodrun -n 2 -- hvdtrain train --optimizer sdg"],
    "one of several": ["    hvdtrain launch {local,mpirub} -n 2 -- true"],
    "a command": ["```", "torchrun --no-python hvdtrain trian", "```"],
    "a launcher": ["    launch/local.sh -n 2 --nodes 2 -- true"],
    "a setting": ["    hvdtrain sweep --set rl=0.1,0.2 -- train -n 2"],
    "options of a trial": [
        "    hvdtrain sweep --set lr=0.1,0.2 -- launch local -n 2 -- python -m hvdtrain.mxnet_lenet --x"
    ],
    "a strategy": ["    python -m hvdtrain.torch_lenet --strategy hvorovod"],
    "a row": ["    hvdtrain bench --rows tarch"],
    "what is required": ["    hvdtrain predict"],
    "a pod": ["command:", "- mpirun", "- python", "- -m", "- hvdtrain.torch_lenet", "- --epoch", '- "3"'],
}


@pytest.mark.parametrize("lines", WRONG.values(), ids=WRONG)
def test_a_wrong_command_is_an_error_with_its_line(tmp_path, lines):
    path = tmp_path / (
        "page.yaml" if lines[0] == "command:" else "page.md" if "`" in lines[0] or lines[0][0] == " " else "x"
    )
    path.write_text("\n".join(["", *lines, ""]))
    found = list(errors(path))
    assert len(found) == 1 and re.match(rf"{path}:[23]: ", found[0]), found
