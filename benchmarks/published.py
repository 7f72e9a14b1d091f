"""The table of docs/scaling.md: published measurements, and what the model of scale says of them.

usage: python benchmarks/published.py
"""

from __future__ import annotations

import statistics

from hvdtrain.measure.scale.published import published_rows


def main() -> None:
    """Print the table in Markdown, and the median errors."""
    rows = published_rows()
    print("| system | network | ranks | published | predicted | error | held out | linear | overlap |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        figures = f"{row.published:.0%} | {row.predicted:.0%} | {row.error:+.1%} | {row.held_out_error:+.1%}"
        print(f"| {row.system} | {row.what} | {row.ranks} | {figures} | {row.linear_error:+.1%} | {row.overlap:g} |")
    for name in ("error", "held_out_error", "linear_error"):
        print(f"\nMedian of |{name}|: {statistics.median(abs(getattr(row, name)) for row in rows):.1%}")


if __name__ == "__main__":
    main()
