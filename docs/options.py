"""Write tables of options, rules and exit statuses into pages, from their definitions, between markers.

python docs/options.py            write the pages (make docs-options)
python docs/options.py --check    only say whether they are up to date, by exit status 1 if they are not
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hvdtrain.cli import launch_options
from hvdtrain.config.option import choices, key
from hvdtrain.config.option_parser import OptionParser
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.rules import DEFAULT, GIVEN, NO_EFFECT, RULES, Rule, Values, of_user_code
from hvdtrain.config.sources import FACTS, KINDS
from hvdtrain.errors import EXIT_STATUSES
from hvdtrain.jobs.launchers import LAUNCHERS

PAGES = {"reference.md": ("results", "runtime", "launch", "statuses"), "strategies.md": ("rules",)}
"""The tables of each page."""
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


FACTS_OF_RULES = {
    "sums_shards": "strategy that sums shards (`single`, `horovod`, `ring`, `mpi`, PyTorch's `ddp`)",
    "many_devices": "strategy for several devices",
    "batch_size": "a smaller `--batch-size`",
    "survives": "`launch --survive`",
    "can_survive": "strategy that can go on (`horovod`, `ring`)",
    "ranks": "more ranks",
    "named": "name of the run",
    "restarts": "`launch --restarts`",
    "is_in_array": "`launch sbatch --array`",
    "gradients": "fewer gradients",
    "is_code": "a task or a script",
    "has_tasks": "strategy that trains one",
    "takes_optimizer": "strategy or framework that takes it",
    "optimizer_method": "a task's `optimizer()`",
    "schedule_method": "a task's `schedule()`",
    "script": "a script with a loop of its own",
    "untested": "shares of a test part",
    "is_other": "the name or the run of another program",
    "full_batches": "full batch (`--remainder drop`)",
    "step_rows": "fewer rows in a step",
    "device_rows": "fewer rows on a device",
    "evaluated": "rows to evaluate",
    "task": "a task",
    "normalizes": "batch normalization",
    "samples": "fewer rows",
    "epochs": "so many `--epochs` or fewer",
    "all_steps": "fewer steps",
}
"""Facts on which rules depend, besides options."""
WORDS = {"script": "the script", "task": "the task", "unit": "rows", "model": "the network"}
WORDS |= {method: method.removesuffix("_method") for method in ("optimizer_method", "schedule_method")}
"""What stands for facts in reasons; N for those that are numbers."""


def written_values(name: str, values: Iterable[object], is_inverse: bool = False) -> str:
    """Some values of an option, as a command line has them."""
    listed = "|".join(str(value) for value in values if value is not None)
    return f"`--{key(name)}` other than `{listed}`" if is_inverse else f"`{f'--{key(name)} {listed}'.strip()}`"


def condition(name: str, values: Values) -> str:
    """With which values of an option, or fact, a rule holds."""
    about = FACTS_OF_RULES.get(name, f"`--{key(name)}`")
    if values == DEFAULT:
        return f"no {about}"
    if name in FACTS_OF_RULES or values == GIVEN:
        return about
    return written_values(name, values.listed, values.is_inverse)


def refused(rule: Rule) -> str:
    """The option of a rule, and the values that it excludes."""
    if rule.allowed == GIVEN:
        return f"no `--{key(rule.option)}`"
    default = getattr(Config, rule.option, None) or getattr(RuntimeOptions, rule.option, None)
    if rule.allowed == DEFAULT:
        return written_values(rule.option, (one for one in choices(KINDS[rule.option]) if one != default))
    return written_values(rule.option, rule.allowed.listed, bool(rule.allowed.listed) and not rule.allowed.is_inverse)


def rules_table() -> str:
    """What does not go together, and why; what has the same condition is in one row."""
    rows: dict[str, dict[str, list[str]]] = {}
    for rule in (*RULES, *of_user_code(Config), *NO_EFFECT):
        given = " and ".join(condition(name, values) for name, values in rule.when.items())
        why = re.sub(r"\{(\w+)\}", lambda match: WORDS.get(match[1], "N"), rule.why)
        rows.setdefault(given, {}).setdefault(why, []).append(refused(rule))
    cells = {
        given: "; ".join(f"{', '.join(of)}: {why}" for why, of in reasons.items()) for given, reasons in rows.items()
    }
    return table(("with", "not"), list(cells.items()))


TABLES = {
    "rules": rules_table,
    "results": lambda: training_options(Config),
    "runtime": lambda: training_options(RuntimeOptions) + free_options(),
    "launch": launch_table,
    "statuses": lambda: table(("status", "meaning"), list(EXIT_STATUSES.items())),
}


def main(arguments: list[str]) -> None:
    for name, tables in PAGES.items():
        page = Path(__file__).with_name(name)
        text = page.read_text()
        if missing := {*tables} - {match[2] for match in BLOCK.finditer(text)}:
            sys.exit(f"{name} has no marker <!-- {min(missing)} -->")
        generated = BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)
        if "--check" not in arguments:
            page.write_text(generated)
        elif generated != text:
            sys.exit(f"{name} has other tables than the code; run: make docs-options")


if __name__ == "__main__":
    main(sys.argv[1:])
