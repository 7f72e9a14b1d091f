"""Inject faults into real jobs: python -m faults.chaos [--minutes M] [--seed S] [--only FAULT ...] [--output FILE]
                                                     [--frameworks F ...] [--kills N] [--first CASE]

Needs tests/ on PYTHONPATH, as `make chaos` sets it. Each case starts a job of two ranks, injects a fault at a moment
drawn from the seed, and checks that the job reports the fault correctly and in time, leaves no process behind, and ends
at the weights of an undisturbed job. Half of the cases train with --shards: another number of ranks and another
strategy continue them, up to the hash of one undisturbed process. In a case of `survive`, ranks of one job are killed
as long as it trains; --kills 1000 makes such cases until as many ranks were killed, however long that takes. The first
case that fails ends the program with a non-zero status, and says how to repeat it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import NamedTuple

import pytest
from support.stack import INSTALLED

from faults import checkpoint_files, disks, lost_ranks, other_faults, survived_kills
from faults.lost_ranks import signal_rank
from faults.suite import HEAD, SHARDS, Row, Suite
from faults.watched_job import HANG_S, remaining_processes

ON_ONE_HOST, FRAMEWORKS = ("local", "horovodrun", "mpirun"), INSTALLED
WITH_SRUN = *ON_ONE_HOST, "srun"
NO_HEARTBEAT = "no heartbeat of rank {rank} "


class Fault(NamedTuple):
    """A kind of fault: the function that injects it, and the launchers that it is tried with."""

    inject: Callable[[Suite, str, str], Row]
    launchers: tuple[str, ...] = ON_ONE_HOST


FAULTS = {
    "kill": Fault(partial(signal_rank, number=SIGKILL, report="was killed by SIGKILL", within_s=2.0), WITH_SRUN),
    "survive": Fault(survived_kills.survive, ("local",)),
    "orders": Fault(survived_kills.orders, ("local",)),
    "freeze": Fault(partial(signal_rank, number=SIGSTOP, report=NO_HEARTBEAT, within_s=HANG_S + 10), WITH_SRUN),
    "sleep": Fault(lost_ranks.sleep),
    "suspend": Fault(lost_ranks.suspend),
    "skew": Fault(partial(lost_ranks.sleep, program="sleep_with_skewed_clock")),
    "cable": Fault(lost_ranks.cable, ("horovodrun",)),
    "ask": Fault(other_faults.ask),
    "output": Fault(other_faults.full_output),
    "file": Fault(partial(other_faults.ask, name="STOP", target="run's folder")),
    "interrupt": Fault(partial(other_faults.ask, name="SIGINT", target="launcher")),
    "flip": Fault(checkpoint_files.flip),
    "full": Fault(disks.full),
    "disk": Fault(disks.disk),
    "stall": Fault(disks.stall),
    "slow": Fault(disks.slow),
    "gone": Fault(disks.gone),
    "nan": Fault(other_faults.nan),
    "drift": Fault(other_faults.drift),
    "two": Fault(other_faults.same_name),
    "ranks": Fault(lost_ranks.change),
    "write": Fault(checkpoint_files.write, ("",)),
}


EACH = ("kill", "survive")


def cases(generator: random.Random, only: list[str], frameworks: list[str]) -> Iterator[tuple[str, str, str]]:
    """Fault, launcher and framework, without end; only of those named.

    Each round has EACH with every launcher and framework, and every other fault once with each of its launchers.
    """
    while True:
        drawn = []
        for name, fault in FAULTS.items():
            mixed = itertools.cycle(generator.sample(FRAMEWORKS, len(FRAMEWORKS)))
            for launcher in fault.launchers:
                drawn += [(name, launcher, one) for one in (FRAMEWORKS if name in EACH else [next(mixed)])]
        generator.shuffle(drawn)
        yield from (one for one in drawn if one[0] in only and one[2] in ("", *frameworks))


def run_cases(suite: Suite, options: argparse.Namespace) -> list[Row]:
    """Results of the cases that start within the options' minutes or kills; ends the process if one fails."""
    rows, until = [], time.monotonic() + 60 * options.minutes
    only = ["survive"] if options.kills else options.only
    drawn = enumerate(cases(random.Random(options.seed), only, options.frameworks))
    for number, (name, launcher, framework) in itertools.islice(drawn, options.first, None):
        if suite.kills.total() >= options.kills if options.kills else time.monotonic() > until:
            break
        suite.random.seed(f"{options.seed}/{number}")
        suite.shards = suite.random.choice((0, SHARDS))
        try:
            rows.append(FAULTS[name].inject(suite, launcher, framework))
        except pytest.skip.Exception as reason:
            rows.append(Row(name, launcher, framework, state=f"skipped: {reason}", ran=False))
        except (AssertionError, pytest.fail.Exception) as error:
            for process in remaining_processes(suite.folder):
                process.kill()
            again = f"the same options and --seed {options.seed} --first {number}"
            sys.exit(f"\n{name}, {launcher}, {framework}: {error}\n\nrepeat it by {again}; its files: {suite.folder}")
        print(rows[-1].line(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="start no case after this time (10)")
    parser.add_argument("--seed", type=int, default=0, help="decides the order, steps and ranks (0)")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT",
                        help=f"run only these faults: {', '.join(FAULTS)}")  # fmt: skip
    parser.add_argument("--frameworks", nargs="+", choices=INSTALLED, default=INSTALLED, help="run only these")
    parser.add_argument("--kills", type=int, default=0, help="run only `survive`, until so many ranks were killed")
    parser.add_argument("--first", type=int, default=0, help="begin with the case of this number (0)")
    parser.add_argument("--output", type=Path, help="write the table to this file, too")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-chaos-"))
    suite, length = Suite(folder), f"{options.kills} kills" if options.kills else f"{options.minutes:g} minutes"
    print(f"seed {options.seed}, {length}, in {folder}\n\n{HEAD}", flush=True)
    with suite.cleanup:
        rows = run_cases(suite, options)
    shutil.rmtree(folder)
    if suite.kills:
        kinds = ", ".join(f"{count} {kind}" for kind, count in suite.kills.most_common())
        print(f"\nranks killed in jobs that survived: {suite.kills.total()} ({kinds})")
    print(f"\n{sum(row.ran for row in rows)} faults, all handled as promised; no process left behind")
    if options.output:
        options.output.write_text("\n".join([HEAD, *(row.line() for row in rows), ""]))


if __name__ == "__main__":
    main()
