"""Speedup, efficiency and serial fraction of a row, against a row of one replica."""

from __future__ import annotations

from hvdtrain.config.sources import FACTS
from hvdtrain.views.report.rows import Row, Scaling
from hvdtrain.views.report.runs import LAYERS, FinishedRun

DECIDE_SPEED = [*(name for name, about in FACTS.items() if about.affects_speed), LAYERS, "device", "threads", "machine"]
"""Settings that decide how long a step takes: they must be equal in a row and its base."""


def scaling(row: Row, rows: list[Row]) -> Scaling | None:
    """A row compared with its base: strategy single, else its own strategy with one replica; None without a base.

    A base may have the global batch (strong scaling) or the batch per replica (weak scaling); if there are bases of
    both kinds, --batch-scope decides. A row with one replica scales nothing: it is a base or has none.
    """
    run, measured = row.run, row.images_per_s
    weak_first = run.options["batch_scope"] == "per-rank"
    for weak in (weak_first, not weak_first):
        base = _base(run, rows, weak)
        if base and measured and base is row:
            return Scaling("base", base, 1.0, 1.0, None)
        if base and measured and run.replicas > 1:
            assert base.images_per_s
            speedup, replicas = measured.median / base.images_per_s.median, run.replicas
            serial_fraction = None if weak else karp_flatt(speedup, replicas)
            return Scaling("weak" if weak else "strong", base, speedup, speedup / replicas, serial_fraction)
    return None


def _base(run: FinishedRun, rows: list[Row], weak: bool) -> Row | None:
    """The preferred base; of equal preference, the one with the fewest other settings."""
    global_batch = run.global_batch
    candidates = [
        (preference, sum(run.settings[name] != base.run.settings.get(name) for name in run.settings), number)
        for number, base in enumerate(rows)
        if (preference := _preference(run, base.run)) is not None
        and base.run.global_batch * (run.replicas if weak else 1) == global_batch
        and base.images_per_s
    ]
    return rows[min(candidates)[2]] if candidates else None


def _preference(run: FinishedRun, base: FinishedRun) -> int | None:
    """How well `base` represents one replica of `run`, 0 is best; None if they are not comparable."""
    equal = all(run.settings.get(name) == base.settings.get(name) for name in DECIDE_SPEED)
    if not equal or base.replicas > 1 or base.options["framework"] != run.options["framework"]:
        return None
    if base.options["strategy"] == "single":
        return 0 if base.options["api"] == run.options["api"] else 1 if base.options["api"] == "auto" else 2
    return 3 if base.strategy == run.strategy else None


def karp_flatt(speedup: float, replicas: int) -> float:
    """Experimentally determined serial fraction, (1 / S - 1 / p) / (1 - 1 / p).

    Karp and Flatt, Measuring parallel processor performance, CACM 33(5), 1990.
    """
    return (1 / speedup - 1 / replicas) / (1 - 1 / replicas)
