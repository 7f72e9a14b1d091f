"""The model against published measurements."""

import runpy
import statistics

from support.jobs import ROOT

PUBLISHED = runpy.run_path(str(ROOT / "benchmarks" / "published.py"))
data, published_rows = PUBLISHED["data"], PUBLISHED["published_rows"]


def median_error(errors):
    return statistics.median(abs(error) for error in errors)


def test_median_error_is_at_most_a_tenth():
    rows = published_rows()
    assert len(rows) >= 20
    assert median_error(row.error for row in rows) <= 0.10
    assert median_error(row.held_out_error for row in rows) <= 0.10
    # Otherwise the model would tell nothing that the number of ranks does not.
    assert median_error(row.error for row in rows) < 0.5 * median_error(row.linear_error for row in rows)


def test_one_constant_for_each_system():
    constants = {}
    for row in published_rows():
        assert constants.setdefault(row.system, row.overlap) == row.overlap
        assert 0 <= row.overlap <= 1


def test_every_system_has_sources():
    for system in data()["systems"].values():
        assert set(system["sources"]) <= data()["sources"].keys()
    assert {row["system"] for row in data()["rows"]} == data()["systems"].keys()


def test_the_documentation_shows_every_row():
    page = (ROOT / "docs" / "scaling.md").read_text()
    for row in published_rows():
        figures = f"{row.published:.0%} | {row.predicted:.0%} | {row.error:+.1%} | {row.held_out_error:+.1%} |"
        assert f"| {row.system} | {row.what} | {row.ranks} | {figures}" in page
