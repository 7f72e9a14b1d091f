"""What came out, in sentences: speed against one process, agreement with it, accuracy, and ranks that others wait for.

A difference within the ranges of repetitions is never called one.
"""

from __future__ import annotations

import math
from collections import Counter

from hvdtrain.config.score import ACCURACY
from hvdtrain.config.strategy_names import SINGLE
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.runs.run import Run
from hvdtrain.runs.step_times import slow_ranks
from hvdtrain.system.text import printable
from hvdtrain.views.report.rows import MOST, Group, Interval, Row, count_of, score_form

MAX_GROUPS = 4
"""Groups whose speed the sentences have; the tables have all."""
AGREE = 1e-3
"""Parameters that differ by no more than this are said to agree."""
UNREPEATED = "(too few runs to know the spread)"


def findings(groups: list[Group]) -> list[str]:
    """The sentences, the most important one first."""
    rows = [row for group in groups for row in group.rows]
    sentences = [*_speeds(groups), _agreement(rows), _scores(rows), _stragglers(rows), _changes(rows)]
    return [sentence for sentence in sentences if sentence]


def _speeds(groups: list[Group]) -> list[str]:
    """The fastest row of each group against its base."""
    parts = [part for group in groups if (part := _speed(group))]
    more = len(parts) - MAX_GROUPS
    rest = f"The tables have the speed of {count_of(more, 'more group')} of rows."
    return [*(f"{part}." for part in parts[:MAX_GROUPS]), *([rest] if more > 0 else [])]


def _speed(group: Group) -> str:
    compared = [(row, row.scaling) for row in group.rows if row.scaling and row.scaling.kind != "base"]
    if not compared:
        return _without_base(group)
    best, scaling = max(compared, key=lambda pair: pair[1].speedup)
    alone = scaling.base.run.options["strategy"] in SINGLE
    base = "one process" if alone else f"{scaling.base.strategy} in one process"
    title, name, times = group.title, _name(best), _times(scaling.speedup)
    speeds, base_speeds = best.images_per_s, scaling.base.images_per_s
    assert speeds and base_speeds
    if speeds.number == 1 or base_speeds.number == 1:
        return f"{title}: {name} is {times} times as fast as {base} {UNREPEATED}"
    ratios = Interval(speeds.minimum / base_speeds.maximum, speeds.maximum / base_speeds.minimum)
    spread = f"({ratios.text('.2f')} over {count_of(speeds.number, 'run')})"
    if ratios.low <= 1 <= ratios.high:
        return f"{title}: {name} cannot be told apart from {base}, with {times} times its speed {spread}"
    if scaling.speedup < 1:
        return f"{title}: {name}, the nearest to {base}, has {times} times its speed {spread}"
    return f"{title}: {name} is {times} times as fast as {base} {spread}{_also(group, best)}"


def _without_base(group: Group) -> str:
    """Of rows without a run of one process to compare with."""
    best = group.fastest or next((row for row in group.rows if row.images_per_s), None)
    if not best or not best.images_per_s:
        return ""
    median, unit = f"{best.images_per_s.median:,.0f}", group.unit
    if len(group.rows) == 1:
        value = best.images_per_s
        ends = f" ({value.range.text(',.0f')} over {count_of(value.number, 'run')})" if value.number > 1 else ""
        return f"{group.title}: {_name(best)} trains {median} {unit}/s{ends}"
    if best is not group.fastest:
        return ""
    if group.mark == MOST.format(unit):
        most = f"{_name(best)} has the most {unit}/s, {median}{_also(group, best) or f' {UNREPEATED}'}"
        return f"{group.title}: of {len(group.rows)} rows {most}"
    return f"{group.title}: {_name(best)} is the fastest of {len(group.rows)} rows, with {median} {unit}/s"


def _also(group: Group, best: Row) -> str:
    """The other rows that repetitions do not tell apart from the best."""
    if best is not group.fastest:
        return ""
    names = [_short(row) for row in group.as_fast()]
    if not names:
        return ""
    named = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return f", with {named} within its spread"


def _short(row: Row) -> str:
    return row.strategy + (f" ({row.note})" if row.note else "")


def _name(row: Row) -> str:
    """The row in a sentence."""
    run = row.run
    parts = [count_of(run.ranks, "rank")] * (run.ranks > 1 or run.devices == 1)
    parts += [count_of(run.devices, "device")] * (run.devices > 1)
    where = " of ".join(parts)
    cores = f" on {count_of(round(row.cores.median), 'core')}" if row.cores else ""
    return f"{_short(row)} with {where}{cores}"


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _agreement(rows: list[Row]) -> str:
    """How far the parameters are from those of a single process."""
    compared = [(row.difference.largest, row) for row in rows if row.difference and row.difference.largest is not None]
    if not compared:
        return ""
    largest, row = max(compared, key=lambda pair: pair[0])
    references = sum(1 for other in rows if other.difference and other.difference.largest is None)
    among = _among(len(compared), len(rows) - references, row)
    if largest == 0:
        return f"Parameters: those of {among} are those of a single process, bit for bit."
    if largest <= AGREE:
        return f"Parameters: those of {among} agree with a single process within {_bound(largest)}."
    return f"Parameters: those of {row.label} differ from a single process by up to {largest:.2g}."


def _among(compared: int, others: int, only: Row) -> str:
    """Which rows were compared. others: number of rows other than references."""
    if compared == 1:
        return only.label
    if compared < others:
        return f"the {compared} rows that can be compared"
    return "both other rows" if compared == 2 else f"all {compared} other rows"


def _bound(value: float) -> str:
    """A number with one digit that is not below `value`."""
    value = max(value, 1e-300)
    exponent = math.floor(math.log10(value))
    digit = math.ceil(value / 10.0**exponent - 1e-9)
    return f"{digit * 10.0**exponent:.0e}".replace("e-0", "e-")


def _scores(rows: list[Row]) -> str:
    """Whether test scores differ, and of accuracies by more than chance in the test rows, and the repetitions."""
    names = Counter(row.scored_by for row in rows if row.score)
    name = max(names, key=lambda name: (names[name], name == ACCURACY), default="")
    measured = [row for row in rows if row.score and row.scored_by == name]
    tests = {(_tested(row.run), row.part, row.run.test_rows) for row in measured}
    if not measured:
        return ""
    if len(measured) == 1:
        return _score(measured[0])
    if len(tests) > 1:
        return ""
    low, high = (choose(row.score.median for row in measured if row.score) for choose in (min, max))
    named = "accuracies" if measured[0].scored_by == ACCURACY else f"{printable(measured[0].scored_by)} values"
    if low == high:
        return f"All {measured[0].part} {named} are {_text(low)}."
    ends = f"{measured[0].part.capitalize()} {named} are {_text(low)} to {_text(high)}"
    if measured[0].scored_by != ACCURACY:
        choose_best = min if measured[0].is_least_best else max
        best = choose_best(measured, key=lambda row: row.score.median if row.score else 0.0)
        return f"{ends}: the {'lowest' if best.is_least_best else 'highest'} is that of {best.label}."
    return _beyond_chance(measured, ends)


def _tested(run: Run) -> str:
    """What it was tested with."""
    return run.settings["model"] if run.is_user_code else run.settings["data"]


def _text(value: float) -> str:
    return f"{value:{score_form(value)}}"


def _beyond_chance(measured: list[Row], ends: str) -> str:
    """The sentence on accuracies that differ. ends: its beginning."""
    ranges = [row.accuracies for row in measured if row.accuracies]
    if len(ranges) < len(measured):
        return f"{ends}; how much of that is chance is not known, as the number of test rows is not recorded."
    if max(interval.low for interval in ranges) <= min(interval.high for interval in ranges):
        return f"{ends}: no difference is beyond chance in the test rows (95 %)."
    best = max(measured, key=lambda row: row.score.median if row.score else 0.0)
    highest = best.accuracies
    below = sum(1 for interval in ranges if highest and not interval.overlaps(highest))
    if not below:
        return f"{ends}: some differ beyond chance in the test rows (95 %), but none from the highest."
    others = len(measured) - 1
    above = "the other" if others == 1 else f"{below} of the {others} others"
    return f"{ends}: the highest, of {best.label}, is above {above} beyond chance (95 %)."


def _score(row: Row) -> str:
    """That of a single row."""
    value = row.score
    assert value
    form = score_form(value.median)
    ends = [f"{value.range.text(form)} over {count_of(value.number, 'run')}"] * (value.number > 1)
    ends += [f"95 % interval {row.chance.text('.4f')}"] if row.chance else []
    return f"{row.part.capitalize()} {printable(row.scored_by)} {_text(value.median)}" + (
        f" ({'; '.join(ends)})." if ends else "."
    )


def _work(run: Run) -> list[int]:
    """How many parts of a batch each of the compared ranks computes; empty where that is unknown."""
    shards, ranks = run.options["shards"], sorted(run.history.ranks)
    if run.changes.shards:
        return [run.changes.shards.get(rank, 0) for rank in ranks]
    is_whole = bool(ranks) and ranks == list(range(run.ranks))
    return Assignment.contiguous(run.ranks, shards).counts if is_whole and isinstance(shards, int) else []


def _slow(run: Run) -> list[tuple[float, int]]:
    """How many times as long as the others each slow rank takes, and its number; the slowest last."""
    ranks, times = sorted(run.history.ranks), run.history.ranks
    slow = slow_ranks([[times[rank] for rank in ranks]], work=_work(run)) if ranks else []
    return [(one.ratio, ranks[one.rank]) for one in slow]


def _stragglers(rows: list[Row]) -> str:
    """The rank that its run waits for the most."""
    waited_for = [(*slow[-1], run.name) for row in rows for run in row.runs if (slow := _slow(run))]
    if not waited_for:
        return ""
    ratio, rank, name = max(waited_for)
    others = len(waited_for) - 1
    more = f", and {count_of(others, 'more run')} {'has' if others == 1 else 'have'} such a rank" if others else ""
    return (
        f"Rank {rank} of {name} takes {ratio:.2f} times as long as the median of the others, which wait for it{more}."
    )


def _changes(rows: list[Row]) -> str:
    """How many ranks were lost and joined, and audits that found other bits, over all runs."""
    found = [run.changes for row in rows for run in row.runs if run.changes.losses or run.changes.unequal]
    if not found:
        return ""
    lost, joined, unequal = (sum(getattr(one, name) for one in found) for name in ("losses", "joins", "unequal"))
    texts = [f"{count_of(lost, 'rank')} lost, {count_of(joined, 'rank')} joined"] * bool(lost)
    texts += [f"{count_of(unequal, 'audited shard')} with other bits"] * bool(unequal)
    return f"Ranks: in {count_of(len(found), 'run')}, {', '.join(texts)}."
