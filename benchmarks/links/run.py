"""Seconds to an accuracy over slow links between hosts of this machine, by methods that send less. Run it as root.

usage: python benchmarks/links/run.py [--part PART] [--rows ROW...] [--links LINK...]   (--help has all)

How many steps a method needs does not depend on the link, which changes no bits. So there are two parts. `curves`: each
row is trained once for each seed without a limit, with an evaluation after few steps. `speed`: on each link a short job
of each row. Seconds to the accuracy are steps times seconds of a step. `whole` trains chosen rows on the limited links
to the end, which shows whether that adds up.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hosts import Hosts, Speed, hosts
from jobs import Jobs
from report import Report
from rows import ROWS, TASKS, Row, Task, choose, write_data

from hvdtrain.config.option import as_options, invalid, option
from hvdtrain.config.option_parser import read_arguments
from hvdtrain.errors import MissingPackage, TrainingError, UserError
from hvdtrain.runs.metrics import decoded
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable, write_outputs

RESULTS = "results.jsonl"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LinksOptions:
    """Measure how long methods that send less take to an accuracy, over slow links between hosts of this machine."""

    part: Literal["all", "curves", "speed", "whole", "report"] = option("all")
    """curves trains each row without a limit, speed measures its steps on each link, whole trains on the links; all is
    the first two; report only writes the tables of what was measured."""
    rows: tuple[str, ...] = option(())
    """Methods to measure, by their names in rows.py or the beginnings of these; default: all (whole: none)."""
    tasks: tuple[str, ...] = option(tuple(TASKS))
    """Networks to train."""
    links: tuple[str, ...] = option(("1000", "100", "10", "100/10ms"))
    """Links of the hosts: MBIT, or MBIT/DELAYms, where a message and its answer take twice the delay."""
    np: int = option(4, minimum=2, maximum=200)
    """Number of hosts, each with one rank."""
    seeds: int = option(5, minimum=1)
    """Seeds of the trainings, from 0."""
    epochs: int = option(0, minimum=0)
    """Passes over the training rows; 0 for those of the network."""
    output: Path = option(Path("runs/links"))
    """Folder for the results, links.md and links.png; what it has is not measured again."""

    def __post_init__(self) -> None:
        as_options(self)
        for name in self.tasks:
            if name not in TASKS:
                raise invalid("tasks", name, "no such network", f"choose from {', '.join(TASKS)}")
        for text in self.links:
            try:
                Speed.parse(text)
            except ValueError as error:
                raise UserError(f"--links: {error}", "give Mbit/s from 0.1 to 100000") from None
        if self.part == "whole" and not self.rows:
            raise UserError("--part whole trains for a long time on slow links", "choose --rows")

    @property
    def speeds(self) -> list[Speed]:
        """Of the links."""
        return [Speed.parse(text) for text in self.links]


class Cell(NamedTuple):
    """A measurement that is made once: of a curve by seed, of a speed by link, of a whole training by both."""

    part: str
    task: Task
    row: Row
    seed: int
    speed: Speed

    def key(self, options: LinksOptions) -> dict[str, Any]:
        """What makes it another measurement."""
        given = {"part": self.part, "task": self.task.name, "row": self.row.name, "np": options.np}
        if self.part != "speed":
            given |= {"seed": self.seed, "epochs": options.epochs or self.task.options["epochs"]}
        return {**given, **({"link": str(self.speed)} if self.part != "curves" else {})}


@exit_status()
def main() -> None:
    """Measure what is missing, and write and print the tables; ends the process with 1 if a job failed."""
    options = read_arguments(LinksOptions, "python benchmarks/links/run.py", sys.argv[1:])
    require_writable(options.output, "--output")
    rows = choose(ROWS, options.rows)
    results = Results(options.output / RESULTS)
    cells = [cell for cell in plan(rows, options) if not results.has(cell.key(options))]
    failed = Bench(options, results).run(cells) if cells else []
    report = Report(rows, [TASKS[name] for name in options.tasks], options.speeds, options.np, results.records)
    outputs: dict[str, str | bytes] = {"links.md": report.markdown()}
    try:
        outputs["links.png"] = report.plot()
    except MissingPackage as error:
        print(f"no links.png: {error}", file=sys.stderr)
    write_outputs(options.output, "--output", outputs)
    print(report.terminal())
    if failed:
        raise TrainingError(f"{len(failed)} job(s) failed: " + "; ".join(failed))


def plan(rows: Sequence[Row], options: LinksOptions) -> Iterator[Cell]:
    """All measurements of the chosen part. Rows follow each other, so that a slower machine affects all of them."""
    pairs = [(TASKS[name], row) for name in options.tasks for row in rows if name in row.tasks]
    if options.part in ("all", "curves"):
        yield from (Cell("curves", task, row, seed, Speed()) for seed in range(options.seeds) for task, row in pairs)
    if options.part in ("all", "speed", "whole"):
        part = "speed" if options.part == "all" else options.part
        yield from (Cell(part, task, row, 0, speed) for speed in options.speeds for task, row in pairs)


class Results:
    """The results that a file has, a JSON object in each line; a line that is none is skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self.records: list[dict[str, Any]] = [value for line in lines if isinstance(value := decoded(line), dict)]

    def has(self, key: dict[str, Any]) -> bool:
        """Whether there is a result with these values."""
        return any(all(record.get(name) == value for name, value in key.items()) for record in self.records)

    def add(self, record: dict[str, Any]) -> None:
        """Append a result."""
        self.records.append(record)
        with open(self._path, "a") as file:
            file.write(json.dumps(record) + "\n")


class Bench:
    """The measurements that are missing, one after the other."""

    def __init__(self, options: LinksOptions, results: Results) -> None:
        self._options, self._results = options, results
        self._signals: list[int] = []
        """Those that asked for the end."""

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        """Raise what ends the process, and removes the hosts. Also called while a job runs: Python ignores what a
        signal's handler raises in some places, as in what `logging` does when a process forks.
        """
        for number in self._signals:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            sys.exit(128 + number)

    def run(self, cells: Sequence[Cell]) -> list[str]:
        """Make hosts, and measure all cells; returns why those failed that did."""
        for stop in STOPS:
            signal.signal(stop, self._on_signal)
        failed = []
        with hosts(self._options.np) as made:
            speed = Speed()
            for number, cell in enumerate(cells):
                where = "" if cell.part == "curves" else f", link {cell.speed} Mbit/s"
                seed = "" if cell.part == "speed" else f", seed {cell.seed}"
                title = f"[{number + 1}/{len(cells)}] {cell.part}: {cell.task.name}, {cell.row.name}{where}{seed}"
                print(title, file=sys.stderr, flush=True)
                if cell.speed != speed:
                    made.set_speed(cell.speed)
                    speed = cell.speed
                try:
                    self._measure(cell, made)
                except TrainingError as error:
                    print(f"    failed: {error}", file=sys.stderr, flush=True)
                    failed.append(f"{cell.task.name}, {cell.row.name}: {error.reason}")
        return failed

    def _measure(self, cell: Cell, made: Hosts) -> None:
        options = self._options
        jobs = Jobs(made.spaces, options.output, self._end_if_asked)
        data = write_data(cell.task, options.output / "data")
        if cell.part == "speed":
            result = jobs.time(cell.row, cell.task, data)
            print(f"    {result['measured_ms']:,.1f} ms", file=sys.stderr, flush=True)
        else:
            result = jobs.train(cell.row, cell.task, cell.seed, data, options.epochs)
            print(f"    accuracy {result['evaluations'][-1][1]:.4f}", file=sys.stderr, flush=True)
        self._results.add({**cell.key(options), **result})


if __name__ == "__main__":
    main()
