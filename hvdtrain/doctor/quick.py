"""The checks for every run: they start no process and take no time. Their files alone are loaded to train."""

from __future__ import annotations

import time

from hvdtrain.doctor.check import BUDGET_S, CheckContext, Row, rows_of, run_check
from hvdtrain.doctor.checks import machine, network, software, variables
from hvdtrain.system import rank_info

QUICK = (
    *(software.check_python, software.check_numpy),
    *(machine.check_threads, machine.check_shm, machine.check_memory, machine.check_limits),
    network.check_interfaces,
    variables.check_variables,
)


def examine() -> list[Row]:
    """Findings on this host."""
    context = CheckContext(rank_info.detect(), rank_info.local_size(), time.monotonic() + BUDGET_S)
    return [row for check in QUICK for row in rows_of(check, run_check(check, context))]
