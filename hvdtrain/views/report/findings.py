"""What came out, in sentences: speed against one process, agreement with it, scores, and ranks that others wait for.

A difference within the ranges of repetitions is said to be chance.
"""

from __future__ import annotations

from collections import Counter

from hvdtrain.config.rules import SINGLE
from hvdtrain.config.score import ACCURACY
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.step_times import slow_ranks
from hvdtrain.system.text import count_of, figure, printable
from hvdtrain.views.report.rows import MOST, ReportRow, RowGroup, ValueRange

UNREPEATED = "(too few runs to know the spread)"


def findings(groups: list[RowGroup]) -> list[str]:
    rows = [row for group in groups for row in group.rows]
    speeds = [f"{speed}." for group in groups if (speed := _speed(group))]
    sentences = [*speeds, _agreement(rows), _scores(rows), _stragglers(rows), _changes(rows)]
    return [sentence for sentence in sentences if sentence]


def _speed(group: RowGroup) -> str:
    compared = [(row, row.scaling) for row in group.rows if row.scaling and row.scaling.kind != "base"]
    if not compared:
        return _without_base(group)
    best, scaling = max(compared, key=lambda pair: pair[1].speedup)
    alone = scaling.base.run.options["strategy"] in SINGLE
    base = "one process" if alone else f"{scaling.base.strategy} in one process"
    name, times = f"{group.title}: {_name(best)}", f"{scaling.speedup:.{2 if scaling.speedup < 10 else 1}f}"
    speeds, base_speeds = best.images_per_s, scaling.base.images_per_s
    assert speeds and base_speeds
    about = UNREPEATED
    if speeds.number > 1 and base_speeds.number > 1:
        ratios = ValueRange(speeds.low / base_speeds.high, speeds.high / base_speeds.low)
        chance = ", so it may be chance" if ratios.low <= 1 <= ratios.high else ""
        about = f"({ratios.text('.2f')} over {count_of(speeds.number, 'run')}{chance})"
    return f"{name} is {times} times as fast as {base} {about}"


def _without_base(group: RowGroup) -> str:
    """Of rows without a run of one process to compare with."""
    best = group.fastest
    if not best or not best.images_per_s:
        return ""
    speed = f"{best.images_per_s.median:,.0f} {group.unit}/s"
    if group.mark == MOST.format(group.unit):
        return f"{group.title}: {_name(best)} has the most of {len(group.rows)} rows, {speed}, which may be chance"
    return f"{group.title}: {_name(best)} is the fastest of {len(group.rows)} rows, with {speed}"


def _name(row: ReportRow) -> str:
    run = row.run
    parts = [count_of(run.config.ranks, "rank")] * (run.config.ranks > 1 or run.config.devices == 1)
    parts += [count_of(run.config.devices, "device")] * (run.config.devices > 1)
    cores = f" on {count_of(round(row.cores.median), 'core')}" if row.cores else ""
    note = f" ({row.note})" if row.note else ""
    return f"{row.strategy}{note} with {' of '.join(parts)}{cores}"


def _agreement(rows: list[ReportRow]) -> str:
    compared = [(row.difference.largest, row) for row in rows if row.difference]
    if not compared:
        return ""
    largest, row = max(compared, key=lambda pair: pair[0])
    among = row.label if len(compared) == 1 else f"the {len(compared)} rows that can be compared"
    if largest == 0:
        return f"Parameters: those of {among} are those of a single process, bit for bit."
    return f"Parameters: those of {among} differ from a single process by at most {largest:.2g}."


def _scores(rows: list[ReportRow]) -> str:
    """Whether scores differ, and accuracies by more than chance in the test rows, and the repetitions."""
    names = Counter(row.scored_by for row in rows if row.score)
    name = max(names, key=lambda name: (names[name], name == ACCURACY), default="")
    measured = [row for row in rows if row.score and row.scored_by == name]
    tested = {(row.run.data or row.run.settings["model"], row.part, row.run.test_rows) for row in measured}
    if len(measured) < 2 or len(tested) > 1:
        return ""
    low, high = (choose(row.score.median for row in measured if row.score) for choose in (min, max))
    named = "accuracies" if name == ACCURACY else f"{printable(name)} values"
    if low == high:
        return f"All {measured[0].part} {named} are {figure(low)}."
    ends = f"{measured[0].part.capitalize()} {named} are {ValueRange(low, high).text()}"
    choose_best = min if measured[0].is_least_best else max
    best = choose_best(measured, key=lambda row: row.score.median if row.score else 0.0)
    ranges = [row.accuracies for row in measured if row.accuracies]
    if not best.accuracies or len(ranges) < len(measured):
        return f"{ends}: the {'lowest' if best.is_least_best else 'highest'} is that of {best.label}."
    below = sum(not one.overlaps(best.accuracies) for one in ranges)
    if not below:
        return f"{ends}: none differs from the highest beyond chance in the test rows (95 %)."
    others = f"{below} of the {len(measured) - 1} others"
    return f"{ends}: the highest, of {best.label}, is above {others} beyond chance (95 %)."


def _work(run: RecordedRun) -> list[int]:
    """How many parts of a batch each of the compared ranks computes; empty where that is unknown."""
    shards, ranks = run.options["shards"], sorted(run.rank_times)
    if run.changes.shards:
        return [run.changes.shards.get(rank, 0) for rank in ranks]
    is_whole = bool(ranks) and ranks == list(range(run.config.ranks))
    return Assignment.contiguous(run.config.ranks, shards).counts if is_whole and isinstance(shards, int) else []


def _stragglers(rows: list[ReportRow]) -> str:
    waited_for = []
    for run in (run for row in rows for run in row.runs if run.rank_times):
        times = dict(sorted(run.rank_times.items()))
        slow = slow_ranks([list(times.values())], work=_work(run))
        waited_for += [(one.ratio, list(times)[one.rank], run.name) for one in slow[-1:]]
    if not waited_for:
        return ""
    ratio, rank, name = max(waited_for)
    others = len(waited_for) - 1
    more = f", and {count_of(others, 'more run')} {'has' if others == 1 else 'have'} such a rank" if others else ""
    return (
        f"Rank {rank} of {name} takes {ratio:.2f} times as long as the median of the others, which wait for it{more}."
    )


def _changes(rows: list[ReportRow]) -> str:
    """How many ranks were lost and joined, and audits that found other bits, over all runs."""
    changes = [run.changes for row in rows for run in row.runs]
    found = [one for one in changes if one.losses or one.joins or one.unequal]
    if not found:
        return ""
    lost, joined, unequal = (sum(getattr(one, name) for one in found) for name in ("losses", "joins", "unequal"))
    texts = [f"{count_of(lost, 'rank')} lost, {count_of(joined, 'rank')} joined"] * bool(lost or joined)
    texts += [f"{count_of(unequal, 'audited shard')} with other bits"] * bool(unequal)
    return f"Ranks: in {count_of(len(found), 'run')}, {', '.join(texts)}."
