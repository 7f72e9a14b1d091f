"""Jobs that survive lost ranks, with random orders of events: some hundred in a minute; `make chaos` makes more.

Needs processes: a program that forks launchers, agents and ranks, and signals them (`orders.py`).
"""

import sys

import pytest
from support.jobs import succeed

from faults.orders import draw
from faults.survived_kills import PATHS

SECONDS = 15
"""In which jobs begin."""


def test_a_seed_draws_the_same_job_each_time():
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]


@pytest.mark.guarantee("survive-lost-ranks")
def test_each_job_ends_with_the_right_status_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "faults.orders", "--seconds", str(SECONDS), "--at-once", "6"]
    succeed(command, tmp_path, **PATHS)
