"""Write the tables of options and exit statuses of reference.md from their definitions, between its markers.

python docs/options.py            write the page (make docs-options)
python docs/options.py --check    only say whether the page is up to date, by exit status 1 if it is not
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.cli import launch_options
from hvdtrain.config.option import key
from hvdtrain.config.option_parser import OptionParser
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import FACTS
from hvdtrain.errors import EXIT_STATUSES
from hvdtrain.jobs.launchers import LAUNCHERS

PAGE = Path(__file__).parent / "reference.md"
BLOCK = re.compile(r"(<!-- (\w+)[^>]*-->\n).*?(<!-- end -->)", re.S)
"""What this program writes: between a marker with the name of a table, and one that ends it."""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown, with empty lines around it."""
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def written(action: argparse.Action) -> str:
    """An option with its value, as a command line has it."""
    if action.nargs == 0:
        return ", ".join(f"`{name}`" for name in action.option_strings)
    value = str(action.metavar or "|".join(map(str, action.choices or ())))
    return ", ".join(f"`{name} {value}`" for name in action.option_strings)


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options that --help shows, except --help itself."""
    for action in parser._actions:
        if action.option_strings and "--help" not in action.option_strings and action.help != argparse.SUPPRESS:
            yield action


def training_options(kind: type) -> str:
    """The options of a dataclass, with their defaults."""
    parser, defaults = OptionParser("", ""), kind()
    parser.add(kind)
    rows = []
    for action in actions(parser):
        value = getattr(defaults, action.dest)
        text = {True: "yes", False: "no", None: ""}.get(value) if isinstance(value, bool | None) else f"{value}"
        default = " ".join(value) if isinstance(value, tuple) else text
        about = str(action.help).replace("%%", "%").partition(" (default: ")[0].removesuffix(".")
        rows.append((written(action), f"`{default}`" if default else "", f"{about}."))
    return table(("option", "default", "meaning"), rows)


def free_options() -> str:
    """Those that may differ between ranks."""
    names = ", ".join(f"`--{key(name)}`" for name, about in FACTS.items() if about.per_rank)
    return f"\nMay differ between ranks: {names}.\n\n"


def launch_table() -> str:
    """The options of launchers, and of sbatch and other commands of `launch`, each with those that have it."""
    (commands,) = (action.choices for action in launch_options.parser()._actions if action.dest == "launcher")
    rows: dict[tuple[str, str], list[str]] = {}
    for name, command in dict(commands or {}).items():
        for action in actions(command):
            about = str(action.help).replace("%%", "%")
            rows.setdefault((written(action), about), []).append(name)
    starting = [*LAUNCHERS, "sbatch"]
    named = [(option, "all" if of == starting else ", ".join(of), about) for (option, about), of in rows.items()]
    return table(("option", "of", "meaning"), named)


TABLES = {
    "results": lambda: training_options(Config),
    "runtime": lambda: training_options(RuntimeOptions) + free_options(),
    "launch": launch_table,
    "statuses": lambda: table(("status", "meaning"), list(EXIT_STATUSES.items())),
}


def main(arguments: list[str]) -> None:
    text = PAGE.read_text()
    missing = TABLES.keys() - {match[2] for match in BLOCK.finditer(text)}
    if missing:
        sys.exit(f"{PAGE.name} has no marker <!-- {min(missing)} -->")
    generated = BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)
    if "--check" not in arguments:
        PAGE.write_text(generated)
    elif generated != text:
        sys.exit(f"{PAGE.name} has other options than the code; run: make docs-options")


if __name__ == "__main__":
    main(sys.argv[1:])
