"""The table of a sweep: as Markdown, as CSV, and for the terminal."""

from __future__ import annotations

import shlex
from typing import Any

from hvdtrain.measure.sweep.outcomes import Average, Combination
from hvdtrain.system.text import printable
from hvdtrain.views.report.csv_table import write_csv
from hvdtrain.views.report.text_table import Column, Section, TextTable, escape

NONE = "–"
FIGURES = {"test accuracy": ".4f", "test loss": ".4f", "images/s": ",.0f"}
"""The figures, and the format of each."""
COLUMNS = ("seeds", *FIGURES)
DEFINITION = "Mean ± sample standard deviation over the seeds; best test accuracy first."


def to_terminal(found: list[Combination]) -> str:
    """The table for the terminal."""
    columns = [Column("options", text=True), *(Column(name, priority=order) for order, name in enumerate(COLUMNS))]
    return TextTable(columns, [Section([[one.label, *_figures(one)] for one in found])]).terminal()


def to_markdown(found: list[Combination], command: list[str], failures: list[str]) -> str:
    """A page with the command, the table, and the trials that failed, if any did."""
    columns = [*(Column(name, text=True) for name in found[0].values), *map(Column, COLUMNS)]
    rows = [[*map(printable, one.values.values()), *_figures(one)] for one in found]
    table = TextTable(columns, [Section(rows)]).markdown()
    failed = "".join(f"- {escape(printable(one))}\n" for one in failures)
    parts = [f"# Sweep\n\n    hvdtrain {printable(shlex.join(command))}\n", f"{DEFINITION}\n", table]
    return "\n".join([*parts, *([f"## Failed trials\n\n{failed}"] if failed else [])])


def to_csv(found: list[Combination]) -> str:
    """One line for each combination, with numbers in full precision."""
    return write_csv([_record(one) for one in found])


def _figures(one: Combination) -> list[str]:
    averages = (one.accuracy, one.loss, one.images_per_s)
    texts = [value.text(form) if value else NONE for value, form in zip(averages, FIGURES.values(), strict=True)]
    return [one.seeds, *texts]


def _record(one: Combination) -> dict[str, Any]:
    record: dict[str, Any] = {**{name: printable(text) for name, text in one.values.items()}}
    record |= {"seeds": len(one.outcomes), "seeds_planned": one.trials}
    for name, value in (("accuracy", one.accuracy), ("loss", one.loss), ("images_per_s", one.images_per_s)):
        for part in Average._fields:
            record[f"{name}_{part}"] = getattr(value, part) if value else None
    return record
