"""The report's rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hvdtrain.system.text import printable
from hvdtrain.views.report.content import Report
from hvdtrain.views.report.rows import Row

FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""


def to_csv(report: Report) -> str:
    """A header and one line per row, with numbers in full precision."""
    fastest = [group.fastest for group in report.groups]
    return write_csv([{**_record(row), "most_images_per_s": any(row is one for one in fastest)} for row in report.rows])


def write_csv(records: Sequence[dict[str, Any]]) -> str:
    """A header and one line per record, which all have the same names; None is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in record.items()} for record in records)
    return file.getvalue()


def _cell(value: Any) -> Any:
    """The value; text that a spreadsheet would run as a formula has an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _record(row: Row) -> dict[str, Any]:
    run, speed, compared = row.run, row.images_per_s, row.scaling
    shares = row.shares or (None, None, None)
    return {
        "framework": row.framework,
        "strategy": run.options["strategy"],
        "api": run.options["api"],
        "kvstore": run.options["kvstore"] if run.options["strategy"] == "kvstore" else None,
        "controller": run.controller or None,
        "ranks": run.ranks,
        "devices": run.devices,
        "replicas": run.replicas,
        "settings": row.note,
        "global_batch": run.global_batch,
        "runs": len(row.runs),
        "images_per_s_median": speed and speed.median,
        "images_per_s_least": speed and speed.minimum,
        "images_per_s_greatest": speed and speed.maximum,
        "images_per_core_s": row.images_per_core_s and row.images_per_core_s.median,
        "gflops_per_core": row.gflops_per_core and row.gflops_per_core.median,
        "step_s": row.step_s and row.step_s.median,
        "epoch_s": row.epoch_s and row.epoch_s.median,
        "compute_share": shares[0],
        "communicate_share": shares[1],
        "data_share": shares[2],
        "scaling": compared and compared.kind,
        "scaling_base": compared and compared.base.label,
        "speedup": compared and compared.speedup,
        "efficiency": compared and compared.efficiency,
        "karp_flatt": compared and compared.serial_fraction,
        "peak_rss_mb": row.peak_rss_mb and row.peak_rss_mb.maximum,
        "accuracy_median": row.accuracy and row.accuracy.median,
        "accuracy_least": row.accuracy and row.accuracy.minimum,
        "accuracy_greatest": row.accuracy and row.accuracy.maximum,
        "test_rows": run.test_rows,
        "accuracy_interval_low": row.chance and row.chance.low,
        "accuracy_interval_high": row.chance and row.chance.high,
        "max_parameter_difference": row.difference and row.difference.largest,
        "difference_from": row.difference and printable(str(row.difference.reference.folder)),
        "started": " ".join(one.started for one in row.runs),
        "folders": " ".join(printable(str(one.folder)) for one in row.runs),
    }
