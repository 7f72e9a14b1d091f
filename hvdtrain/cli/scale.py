"""python -m hvdtrain scale RUN: predict the time of a step, speed and efficiency on more ranks than were measured."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hvdtrain.collectives.mean import count
from hvdtrain.config.forms import FP16, parse_method
from hvdtrain.config.option import as_options, invalid, option, positional
from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.measure.scale.allreduce import STRATEGIES, Link
from hvdtrain.measure.scale.measured import fit_tables, is_quantity, read_runs, read_table
from hvdtrain.measure.scale.step import StepModel
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable, write_outputs
from hvdtrain.system.text import printable, to_json
from hvdtrain.views.table import Column, Section, Table, paragraph

PROGRAM = "python -m hvdtrain scale"
COLUMNS = (
    *(Column("ranks"), Column("--compression", left=True), Column("images/s"), Column("efficiency")),
    *(Column("step, ms"), Column("computation", priority=1), Column("input", priority=4)),
    *(Column("slowest rank", priority=2), Column("packing", priority=3), Column("communication", priority=1)),
)


@dataclass(frozen=True)
class ScaleOptions:
    """Predict the time of a step, speed and efficiency of training on more ranks than were measured."""

    runs: tuple[Path, ...] = positional()
    """Folders of finished runs of one network, which may differ in batch size; also their strategy is predicted."""
    allreduce: tuple[Path, ...] = option(())
    """Tables of `benchmarks/allreduce.py` (allreduce.json); several of different numbers of ranks fit better."""
    link: str = option("")
    """Link between hosts in place of a table's, as LATENCY_US/GB_S: microseconds of a message, and GB/s of a host in
    each direction, such as 50/1.1."""
    ranks: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64, 128, 256), minimum=1, maximum=1 << 20)
    """Numbers of ranks to predict."""
    ranks_per_host: int = option(1, above=0)
    """Ranks of each host."""
    scaling: Literal["weak", "strong"] = option("weak")
    """weak: each rank has as many images as in the run; strong: the run's global batch is divided."""
    compression: tuple[str, ...] = option(())
    """Methods of --compression to compare; default: that of the runs."""
    output: Path = option(Path("runs/scale"))
    """Folder for scale.md and scale.json."""

    def __post_init__(self) -> None:
        as_options(self)
        if not self.ranks:
            raise UserError("--ranks: no number is given", "give some, such as 1 8 64")
        if not self.allreduce and not self.link:
            remedy = "give --allreduce FILE, which python benchmarks/allreduce.py writes, or --link LATENCY_US/GB_S"
            raise UserError("nothing tells how fast the network is", remedy)


def parser() -> OptionParser:
    return parser_of(ScaleOptions, PROGRAM)


@exit_status()
def main(argv: list[str]) -> None:
    """Predict, print the table and write it; ends the process with 2 for invalid options or files."""
    options = read_arguments(ScaleOptions, PROGRAM, argv)
    require_writable(options.output, "--output")
    models, notes = _models(options)
    made = [_predict(model, options, ranks) for ranks in sorted(set(options.ranks)) for model in models]
    table = Table(COLUMNS, [Section([_cells(one) for one in made])])
    assumed = [f"Assumed: {note}." for note in notes]
    values = {"kind": "scale", "scaling": options.scaling, "predictions": made, "assumed": notes}
    pages = {"scale.md": "\n".join([table.markdown(), *assumed, ""]), "scale.json": to_json(values, indent=1) + "\n"}
    write_outputs(options.output, "--output", pages)
    print(f"{table.terminal()}\n", *map(paragraph, assumed), sep="\n")
    print(f"written to {printable(str(options.output))}: {', '.join(pages)}")


def _given_link(text: str) -> Link:
    """The link of --link. Raises UserError for an invalid one."""
    latency_us, _, gb_s = text.partition("/")
    with contextlib.suppress(ValueError):
        if is_quantity(float(latency_us)) and is_quantity(float(gb_s)):
            return Link(float(latency_us) * 1e-6, 1e-9 / float(gb_s))
    raise invalid("link", text, "not a link", "give LATENCY_US/GB_S, such as 50/1.1")


def _models(options: ScaleOptions) -> tuple[list[StepModel], list[str]]:
    """One for each method, and what was assumed. Raises UserError for files that cannot be used."""
    work = read_runs(options.runs)
    allreduce = STRATEGIES[work.strategy or "horovod"]
    tables = [read_table(path) for path in options.allreduce]
    local = fit_tables([table for table in tables if table.hosts == 1], allreduce)
    between = [table for table in tables if table.hosts > 1]
    network = _given_link(options.link) if options.link else fit_tables(between, allreduce)
    notes = [f"the allreduce is that of {allreduce.library}{', as in the run' * bool(work.strategy)}", *work.notes]
    notes += ["links between hosts are as fast as those measured in one host"] * (network is None)
    texts = options.compression or (work.compression,)
    methods = [parse_method(Config(compression=text).compression) for text in texts]
    if any(method.name == FP16 for method in methods) and not (allreduce.agrees and work.sync_every == 1):
        raise invalid("compression", FP16, "Horovod's own, for gradients of each step", "use int8")
    links = [link for link in (network, local) if link]
    models = [StepModel(work, allreduce, links[0], links[-1], options.ranks_per_host, method) for method in methods]
    size, sizes = 4 * count(work.shapes), links[0].sizes
    if sizes and not sizes[0] <= size <= sizes[-1]:
        notes.append(f"an allreduce of all gradients, {size:,} bytes, is extrapolated from those in the table")
    return models, notes


def _predict(model: StepModel, options: ScaleOptions, ranks: int) -> dict[str, Any]:
    work, weak = model.workload, options.scaling == "weak"
    rows, alone = (work.rows if weak else math.ceil(work.global_batch / number) for number in (ranks, 1))
    step, images = model.step(ranks, rows), rows * ranks if weak else work.global_batch
    speed, of_one = images / sum(step), alone / sum(model.step(1, alone))
    made = {"ranks": ranks, "compression": str(model.method), "rows": rows, "images_per_s": speed}
    return {**made, "efficiency": speed / (ranks * of_one), "seconds": sum(step), "step": step._asdict()}


def _cells(made: dict[str, Any]) -> list[str]:
    figures = f"{made['ranks']:,}", made["compression"], f"{made['images_per_s']:,.0f}", f"{made['efficiency']:.0%}"
    return [*figures, *(f"{1e3 * seconds:,.2f}" for seconds in (made["seconds"], *made["step"].values()))]
