"""Seconds to an accuracy over slow links: `python -m hvdtrain bench links`.

How many steps a method needs does not depend on the link, which changes no bits. So there are two parts. `curves`: each
row is trained once for each seed without a limit, with an evaluation after few steps. `speed`: on each link a short job
of each row, whose step is predicted before. Seconds to the accuracy are steps times seconds of a step. `whole` trains
chosen rows on the limited links to the end, which shows whether that adds up.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hvdtrain.config.option import arguments, invalid, option
from hvdtrain.config.validity import check_ranges
from hvdtrain.doctor import subprocesses
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.measure.bench import links_prediction as prediction
from hvdtrain.measure.bench.hosts import Hosts, Speed, hosts
from hvdtrain.measure.bench.links_jobs import Jobs
from hvdtrain.measure.bench.links_report import Report
from hvdtrain.measure.bench.links_rows import ROWS, TASKS, Row, Task, choose, write_data
from hvdtrain.measure.bench.strategies import JOB_TIMEOUT_S, environment
from hvdtrain.measure.scale.workload import Workload, read_workload
from hvdtrain.runs.json_lines import decoded
from hvdtrain.system.files import require_writable, write_outputs

RESULTS = "results.jsonl"
ALONE_STEPS = 60
"""Of the job of one rank from which the model gets what a step computes."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LinksOptions:
    """Measure how long methods that send less take to an accuracy, over slow links between hosts of this machine."""

    part: Literal["all", "curves", "speed", "whole", "report"] = option("all")
    """curves trains each row without a limit, speed measures its steps on each link, whole trains on the links; all is
    the first two; report only writes the tables of what was measured."""
    rows: tuple[str, ...] = option(())
    """Methods to measure, by the names that --show prints, or their beginnings; default: all (whole: none)."""
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
    peers: Path = option(Path("benchmarks"))
    """Folder of the peers' programs, which is in hvdtrain's sources; without it they are not run."""
    output: Path = option(Path("runs/links"))
    """Folder for the results, links.md and links.png; what it has is not measured again."""
    show: bool = option(False)
    """List the methods, and exit."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for option_name in ("tasks", "links"):
            if not getattr(self, option_name):
                raise UserError(f"--{option_name}: none is given", "name at least one, or leave it out for all")
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
    """A measurement that is made once. place: the seed of a curve, the link of a speed, both of a whole training."""

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


def run(options: LinksOptions) -> str:
    """Measure what is missing, and write the tables; returns those for the terminal.

    Raises UserError where hosts cannot be made or the output cannot be written, TrainingError if jobs failed.
    """
    rows = choose(ROWS, options.rows)
    if options.show:
        return "\n".join(f"{row.name:40}{problem(row, options)}".rstrip() for row in rows)
    require_writable(options.output, "--output")
    results = Results(options.output / RESULTS)
    cells = [cell for cell in plan(rows, options) if not results.find(cell.key(options))]
    failed = Bench(options, results).run(cells) if cells else []
    report = Report(rows, [TASKS[name] for name in options.tasks], options.speeds, options.np, results.records)
    write_outputs(options.output, "--output", {"links.md": report.markdown(), "links.png": report.plot()})
    for row in rows:
        if reason := problem(row, options):
            print(f"{row.name} was not run: {reason}", file=sys.stderr)
    if failed:
        raise TrainingError(f"{len(failed)} job(s) failed: " + "; ".join(failed))
    return report.terminal()


def problem(row: Row, options: LinksOptions) -> str:
    """Why a row cannot run here; empty if it can."""
    if row.program and not (options.peers / row.program).is_file():
        return f"{options.peers} has no {row.program} (--peers)"
    return ""


def plan(rows: Sequence[Row], options: LinksOptions) -> Iterator[Cell]:
    """All measurements of the chosen part. Rows follow each other, so that a slower machine affects all of them."""
    able = [row for row in rows if not problem(row, options)]
    pairs = [(TASKS[name], row) for name in options.tasks for row in able if name in row.tasks]
    seeds = range(options.seeds)
    if options.part in ("all", "curves"):
        yield from (Cell("curves", task, row, seed, Speed()) for seed in seeds for task, row in pairs)
    if options.part in ("all", "speed"):
        yield from (Cell("speed", task, row, 0, speed) for speed in options.speeds for task, row in pairs)
    if options.part == "whole":
        yield from (Cell("whole", task, row, 0, speed) for speed in options.speeds for task, row in pairs)


class Results:
    """The results that a file has, a JSON object in each line; a line that is none is skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self.records: list[dict[str, Any]] = [value for line in lines if isinstance(value := decoded(line), dict)]

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The result with these values; None if there is none."""
        same = (record for record in self.records if all(record.get(name) == value for name, value in key.items()))
        return next(same, None)

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append a result; returns it."""
        self.records.append(record)
        with open(self._path, "a") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def once(self, key: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result with these values, which is made if there is none."""
        return self.find(key) or self.add({**key, **make()})


class Bench:
    """The measurements that are missing, one after the other."""

    def __init__(self, options: LinksOptions, results: Results) -> None:
        self._options, self._results = options, results
        self._workloads: dict[tuple[str, str], Workload] = {}
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
                try:
                    if cell.part == "speed":
                        self._predict(cell)  # whose jobs take the cores, but no link
                    if cell.speed != speed:
                        made.set_speed(cell.speed)
                        speed = cell.speed
                    self._measure(cell, made)
                except TrainingError as error:
                    print(f"    failed: {error}", file=sys.stderr, flush=True)
                    failed.append(f"{cell.task.name}, {cell.row.name}: {error.reason}")
        return failed

    def _measure(self, cell: Cell, made: Hosts) -> None:
        options = self._options
        jobs = Jobs(made.spaces, options.output, options.peers, self._end_if_asked)
        data = write_data(cell.task, options.output / "data")
        if cell.part != "speed":
            result = jobs.train(cell.row, cell.task, cell.seed, data, options.epochs)
            print(f"    accuracy {result['evaluations'][-1][1]:.4f}", file=sys.stderr, flush=True)
        else:
            predicted_s = self._predict(cell)
            predicted = {"predicted_ms": 1e3 * predicted_s} if cell.row.is_modeled else {}
            for value in predicted.values():
                print(f"    predicted {value:,.1f} ms", file=sys.stderr, flush=True)
            result = {**predicted, **jobs.time(cell.row, cell.task, data, predicted_s)}
            print(f"    measured {result['measured_ms']:,.1f} ms", file=sys.stderr, flush=True)
        self._results.add({**cell.key(options), **result})

    def _predict(self, cell: Cell) -> float:
        """Seconds of a step."""
        name = prediction.library_of(cell.row)
        key = {"part": "latency", "library": name}
        known = self._results.once(key, lambda: {"latency_s": prediction.latency(name)})
        workload = self._workload(cell.row.framework, cell.task)
        return prediction.step_s(cell.row, workload, known["latency_s"], cell.speed, self._options.np)

    def _workload(self, framework: str, task: Task) -> Workload:
        """Of one rank that trains alone, with the rows of one of them."""
        if (framework, task.name) not in self._workloads:
            folder = self._options.output / f"alone-{framework}-{task.name}-{self._options.np}"
            if not (folder / "result.json").is_file():
                self._train_alone(framework, task, folder)
            self._workloads[framework, task.name] = read_workload((folder,)).workload
        return self._workloads[framework, task.name]

    def _train_alone(self, framework: str, task: Task, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a benchmark that was stopped
        data = write_data(task, self._options.output / "data")
        own_batch = task.batch // self._options.np
        given = {**task.options, "batch_size": own_batch, "data": str(data), "max_steps": ALONE_STEPS}
        runtime = ("--runs", str(folder.parent), "--name", folder.name, "--log-every", "5", "--quiet")
        start = [sys.executable, "-m", "hvdtrain", "train", "--framework", framework, "--strategy", "single"]
        command = [*start, "--recipe", task.recipe, *arguments(given), *runtime]
        done = subprocesses.run(command, JOB_TIMEOUT_S, environment())
        if done.status:
            raise TrainingError(f"the job of one rank failed: {done.reason()}")
