"""Statistics, tables and the plot of `run.py`, from the records of its results."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from hosts import Speed
from rows import Row, Task

from hvdtrain.errors import needed_by
from hvdtrain.runs.plots import BLUE, GREEN, ORANGE, STYLE
from hvdtrain.views.table import Column, Section, Table, spread, text_column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_NUMBER = "–"
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5th percentiles of Student's t distribution with 1 to 10 degrees of freedom."""
NORMAL_QUANTILE = 1.960
COLORS, MARKERS = (BLUE, ORANGE, GREEN, "#D55E00", "#CC79A7", "#56B4E9"), "osD^vP"
LINES = ("-", "--", "-.")
"""So that lines on top of each other are all visible."""


def t_quantile(freedom: int) -> float:
    """The 97.5th percentile; of more than 10 degrees of freedom by Cornish and Fisher's expansion, within 0.003."""
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


class Interval(NamedTuple):
    """A mean, and half of its 95 % confidence interval (Student's); NaN with one value."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of independent values, at least one."""
        half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(fmean(values), half)

    def text(self, sign: str = "") -> str:
        """With as many digits as accuracies have. sign: `+` for differences."""
        return f"{self.mean:{sign}.4f}" + (f" ± {self.half:.4f}" if self.half == self.half else "")


def reached(evaluations: Sequence[Sequence[float]], accuracy: float) -> float | None:
    """Where the accuracy is reached, between the last evaluation below it and the first that is not; None if never.

    evaluations: pairs of a position, which is 0 at the start, and an accuracy.
    """
    before, low = 0.0, 0.0
    for position, value in evaluations:
        if value >= accuracy:
            return before + (position - before) * (accuracy - low) / (value - low)
        before, low = position, value
    return None


class Measured(NamedTuple):
    """What is known of a row in one task."""

    row: Row
    curves: list[dict[str, Any]]
    """By seed."""
    speeds: dict[Speed, dict[str, Any]]

    def steps(self, accuracy: float) -> list[float]:
        """Of each seed, to the accuracy; infinite if it is not reached."""
        found = (reached(curve["evaluations"], accuracy) for curve in self.curves)
        return [math.inf if steps is None else steps for steps in found]

    @property
    def final(self) -> dict[int, float]:
        """The last accuracy, by seed."""
        return {curve["seed"]: curve["evaluations"][-1][1] for curve in self.curves}


class Report:
    """Tables and plot of some rows, tasks and links. records: of the results."""

    def __init__(
        self, rows: Sequence[Row], tasks: Sequence[Task], speeds: Sequence[Speed], ranks: int,
        records: Sequence[dict[str, Any]],
    ) -> None:  # fmt: skip
        self._rows, self._tasks, self._speeds, self._ranks = rows, tasks, speeds, ranks
        self._records = [record for record in records if record.get("np") == ranks]
        self._measured = {task.name: self._of_task(task) for task in tasks}

    def _of_task(self, task: Task) -> dict[str, Measured]:
        """All rows that have any result, by name."""
        measured = {}
        for row in self._rows:
            own = [record for record in self._records if record["task"] == task.name and record["row"] == row.name]
            speeds = {str(speed): speed for speed in self._speeds}
            of_links = {speeds[r["link"]]: r for r in own if r["part"] == "speed" and r["link"] in speeds}
            curves = [record for record in own if record["part"] == "curves"]
            if own:
                measured[row.name] = Measured(row, sorted(curves, key=lambda curve: int(curve["seed"])), of_links)
        return measured

    def seconds(self, task: Task, name: str, speed: Speed) -> list[float]:
        """Of each seed, to the accuracy of the task; empty if steps or their time are not known."""
        known = self._measured[task.name]
        of_link = known[name].speeds.get(speed) if name in known else None
        if not of_link:
            return []
        return [number * of_link["measured_ms"] / 1e3 for number in known[name].steps(task.accuracy)]

    def tables(self) -> list[Table]:
        """All that have rows."""
        made = [table(task) for task in self._tasks for table in (self.accuracies, self.step_times)]
        return [table for table in (*made, self.whole()) if table.sections[0].rows]

    def markdown(self) -> str:
        """All tables, and what was fastest."""
        return "\n".join([*(table.markdown() for table in self.tables()), *self.fastest(), ""])

    def terminal(self) -> str:
        """The same, for a terminal."""
        return "\n\n".join([*(table.terminal() for table in self.tables()), *self.fastest()])

    def accuracies(self, task: Task) -> Table:
        """Steps and seconds to the accuracy, and the final accuracy."""
        rows = []
        for name, measured in self._measured[task.name].items():
            steps = measured.steps(task.accuracy)
            figures = [self._seconds_cell(task, measured.row, speed) for speed in self._speeds]
            final = Interval.of(list(measured.final.values())).text() if measured.final else NO_NUMBER
            rows.append([name, _spread(steps, ",.0f"), *figures, final, self._difference(task, measured)])
        columns = [
            *(text_column("method"), Column(f"steps to {task.accuracy:g}")),
            *(Column(f"s at {speed} Mbit/s") for speed in self._speeds),
            *(Column("final accuracy", priority=1), Column("minus fp32's", priority=2)),
        ]
        caption = (
            f"{task.name}: seconds to an accuracy of {task.accuracy:g} with {self._ranks} ranks, and how many times as "
            "fast as Horovod's fp32 in the same framework that is. Median of seeds (minimum to maximum); accuracies "
            "with the 95 % confidence interval of their mean, differences seed by seed."
        )
        return Table(columns, [Section(rows)], caption=caption)

    def _seconds_cell(self, task: Task, row: Row, speed: Speed) -> str:
        seconds = self.seconds(task, row.name, speed)
        ratio = self.ratio(task, row, speed)
        times = f", {ratio:.2f}x" if ratio and row.name != row.base else ""
        return _spread(seconds, ",.1f") + times

    def ratio(self, task: Task, row: Row, speed: Speed) -> float | None:
        """How many times as fast as Horovod's fp32, by the medians; None if that is not known."""
        own, base = self.seconds(task, row.name, speed), self.seconds(task, row.base, speed)
        if not own or not base or not math.isfinite(median(own)) or not math.isfinite(median(base)):
            return None
        return median(base) / median(own)

    def _difference(self, task: Task, measured: Measured) -> str:
        """Final accuracy less that of Horovod's fp32 with the same seed."""
        base = self._measured[task.name].get(measured.row.base)
        if not base or base.row is measured.row:
            return ""
        pairs = [value - base.final[seed] for seed, value in measured.final.items() if seed in base.final]
        return Interval.of(pairs).text("+") if pairs else NO_NUMBER

    def step_times(self, task: Task) -> Table:
        """Milliseconds of a step, and what a host sends for it."""
        rows = []
        for name, measured in self._measured[task.name].items():
            sent = [record["sent_kb"] for record in measured.speeds.values() if record["sent_kb"] is not None]
            of_links = [measured.speeds.get(speed) for speed in self._speeds]
            figures = [f"{of_link['measured_ms']:,.1f}" if of_link else NO_NUMBER for of_link in of_links]
            if measured.speeds:
                rows.append([name, f"{sent[-1]:,.0f}" if sent else NO_NUMBER, *figures])
        columns = [
            *(text_column("method"), Column("sent, kB", priority=1)),
            *(Column(f"ms at {speed} Mbit/s") for speed in self._speeds),
        ]
        caption = (
            f"{task.name}: milliseconds of a step of {task.batch} rows, and what a host sends in it on the last of the "
            "links, with headers."
        )
        return Table(columns, [Section(rows)], caption=caption)

    def whole(self) -> Table:
        """Whole trainings on the limited links, against steps times seconds of a step."""
        rows = []
        for record in self._records:
            task = next((task for task in self._tasks if task.name == record["task"]), None)
            if record["part"] == "whole" and task and record["row"] in self._measured[task.name]:
                rows.append(self._whole_row(record, task))
        columns = [
            *(Column("network", left=True), text_column("method"), Column("link, Mbit/s"), Column("steps x step, s")),
            *(Column("measured, s"), Column("difference"), Column("final accuracy", priority=1)),
        ]
        caption = "Whole trainings on the limited links: seconds to the accuracy, with evaluations and checkpoints."
        return Table(columns, [Section(rows)], caption=caption)

    def _whole_row(self, record: dict[str, Any], task: Task) -> list[str]:
        accuracies = [value for _, value in record["evaluations"]]
        seconds = reached(list(zip(record["times"], accuracies, strict=True)), task.accuracy)
        steps = reached(record["evaluations"], task.accuracy)
        measured = self._measured[task.name][record["row"]]
        speeds = {str(speed): of_link for speed, of_link in measured.speeds.items()}
        of_link = speeds.get(record["link"])
        expected = steps * of_link["measured_ms"] / 1e3 if steps and of_link else None
        difference = f"{expected / seconds - 1:+.1%}" if expected and seconds else NO_NUMBER
        shown = [f"{value:,.1f}" if value else NO_NUMBER for value in (expected, seconds)]
        return [task.name, record["row"], record["link"], *shown, difference, f"{accuracies[-1]:.4f}"]

    def fastest(self) -> Iterator[str]:
        """The fastest of the methods whose final accuracy is not below the interval of fp32's, on each link."""
        for task, speed in itertools.product(self._tasks, self._speeds):
            known = self._measured[task.name]
            ratios = {}
            for name, measured in known.items():
                base = known.get(measured.row.base)
                ratio = self.ratio(task, measured.row, speed)
                if base and ratio and len(base.curves) > 1 and measured.final:
                    least = Interval.of(list(base.final.values()))
                    if fmean(measured.final.values()) >= least.mean - least.half:
                        ratios[name] = ratio
            if ratios:
                best = max(ratios, key=ratios.__getitem__)
                yield (
                    f"{task.name} at {speed} Mbit/s: {best} is {ratios[best]:.1f} times as fast as "
                    f"{known[best].row.base}, with a final accuracy not below its interval."
                )

    def plot(self) -> bytes:
        """Seconds to the accuracy against the links, for each method of the first framework; a PNG.

        Raises MissingPackage without Matplotlib.
        """
        with needed_by("a chart", "plots"):
            import matplotlib.figure
        with matplotlib.rc_context({**STYLE, "text.parse_math": True}):  # labels of logarithmic axes are math
            figure = matplotlib.figure.Figure(figsize=(5.5 * len(self._tasks) + 2.5, 5), layout="constrained")
            self._draw(figure)
            figure.savefig(file := io.BytesIO(), format="png", dpi=120)
        return file.getvalue()

    def _draw(self, figure: Figure) -> None:
        frameworks = {row.framework for row in self._rows}
        first = next(row.framework for row in self._rows)
        styles = list(itertools.product(LINES, zip(COLORS, MARKERS, strict=True)))
        rows = [row for row in self._rows if row.framework == first]
        lines: dict[str, Any] = {}
        for axis, task in zip(figure.subplots(1, len(self._tasks), squeeze=False)[0], self._tasks, strict=True):
            for row, (line, (color, marker)) in zip(rows, itertools.cycle(styles)):
                values = [self.seconds(task, row.name, speed) for speed in self._speeds]
                middle = [median(of_link) if of_link else math.nan for of_link in values]
                if any(map(math.isfinite, middle)):
                    middle = [value if math.isfinite(value) else math.nan for value in middle]
                    label = row.name.removeprefix(f"{first}/") if len(frameworks) > 1 else row.name
                    (lines[label],) = axis.plot(middle, line, color=color, marker=marker, markersize=4, linewidth=1)
            axis.set_xticks(range(len(self._speeds)), [str(speed) for speed in self._speeds])
            axis.set(xlabel="link, Mbit/s", ylabel=f"seconds to an accuracy of {task.accuracy:g}", title=task.name)
            axis.set_yscale("log")
        if lines:
            figure.legend(list(lines.values()), list(lines), loc="outside right center")


def _spread(values: Sequence[float], form: str) -> str:
    """Median and range; values may be infinite, which is said in words."""
    if not values:
        return NO_NUMBER
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) * 2 <= len(values):
        return f"reached by {len(finite)} of {len(values)} seeds"
    missed = len(values) - len(finite)
    text = spread(finite, form) if not missed else f"{median(values):{form}} ({min(values):{form}} to never)"
    return f"{text}, {missed} of {len(values)} never" if missed else text
