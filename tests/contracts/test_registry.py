"""The registry of strategies, where mypy cannot check it."""

import pytest
from support.jobs import run
from support.stack import FRAMEWORKS

PROGRAM = """
import sys
from hvdtrain.config.options import STYLES, Config
from hvdtrain.frameworks.registry import find_strategy, list_strategies
from hvdtrain.interfaces import Strategy

framework = sys.argv[1]
rows = list_strategies(framework)
assert {row.api for row in rows} == set(STYLES[framework])
assert len({(row.strategy, row.api) for row in rows}) == len(rows)
assert (rows[0].strategy, rows[0].api) == ("single", STYLES[framework][0])
for row in rows:
    assert row.about.endswith(".") and len(row.about) <= 100, row
    entry = find_strategy(Config(framework=framework, strategy=row.strategy, api=row.api))
    assert issubclass(entry.strategy, Strategy), row
    assert all(isinstance(module, str) for module in entry.requires), row
    for option, supported, reason in entry.strategy.unsupported:
        assert getattr(Config, option) in supported and reason, (row, option)
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_strategy_is_registered_completely(tmp_path, framework):
    """Each has a docstring for --strategy help, and supports the default of every option."""
    status, output = run(["python", "-c", PROGRAM, framework], tmp_path)
    assert status == 0, output
