"""Run Horovod's own tests with two variants of its core, and compare: python -m horovod_suite --source DIR

Needs tests/ and the checkout on PYTHONPATH, as `make horovod-test SOURCE=DIR` sets it. The results of each case and
core stay in the output folder and are not run again. Ends with status 1 if a test's outcome with another core is not
that with the first core in any of three runs, and with status 2 for wrong input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from horovod_suite import outcomes
from horovod_suite.cases import Case, Core, cases, parse_core
from horovod_suite.job import Stopped, run_case, stopping
from horovod_suite.outcomes import Run, differences
from hvdtrain.errors import UserError

MAX_RUNS = 3
CORES = [["as-shipped", "HOROVOD_EVENT_DRIVEN=0"], ["event-driven", "HOROVOD_EVENT_DRIVEN=1"]]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="horovod_suite", description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="source tree of Horovod, of the installed version")
    parser.add_argument("--core", nargs="+", action="append", metavar=("NAME", "VENV|VARIABLE=VALUE"),
                        help="a build to test: a name, then a virtual environment, variables, or both; the first is the"
                        " reference (default: HOROVOD_EVENT_DRIVEN=0, then 1, in this environment)")  # fmt: skip
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--over", nargs="+", choices=["gloo", "mpi"], default=["gloo", "mpi"])
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="cases with these parts in their names")
    parser.add_argument("--output", type=Path, default=Path("runs/horovod-suite"), help="folder of logs and results")
    parser.add_argument("--quiet-limit", type=float, default=180, metavar="S",
                        help="s without a test that starts or ends, after which a job counts as hung")  # fmt: skip
    return parser.parse_args(arguments)


def install_requirements() -> Path:
    """The folder with what Horovod's tests import; installed once, with checksums. Raises UserError."""
    file = Path(__file__).with_name("requirements.txt")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hvdtrain")
    folder = cache / f"horovod-suite-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        new = folder.with_suffix(f".{os.getpid()}")
        command = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        done = subprocess.run([sys.executable, *command, "--target", str(new), "-r", str(file)])
        if done.returncode:
            raise UserError("the packages that Horovod's tests need cannot be installed", "see pip's error above")
        new.rename(folder)
    return folder


class Suite:
    """Runs cases, and keeps their results in the output folder."""

    def __init__(self, output: Path, quiet_s: float) -> None:
        self.output, self.quiet_s, self.requirements = output.resolve(), quiet_s, install_requirements()

    def run(self, case: Case, core: Core, number: int) -> Run:
        """The result of a case's run of this number, from the output folder if it is there."""
        folder = self.output / core.name / case.name / f"run-{number}"
        if (folder / "run.json").exists():
            return Run(**json.loads((folder / "run.json").read_text()))
        run = run_case(case, core, folder, self.requirements, self.quiet_s)
        print(f"{case.name}, {core.name}, run {number}: {run.summary()}; {run.seconds:.0f} s", flush=True)
        return run

    def compare(self, case: Case, cores: list[Core]) -> list[list[Run]]:
        """Run a case with each core; those that differ from the first again, until they agree or MAX_RUNS are done."""
        results = [[self.run(case, core, 1)] for core in cores]
        for number in range(2, MAX_RUNS + 1):
            differ = [runs for runs in results[1:] if "differs" in differences(results[0], runs).values()]
            if not differ:
                break
            # The reference as well: it may be the one that is flaky.
            for runs, core in zip(results, cores, strict=True):
                if runs is results[0] or runs in differ:
                    runs.append(self.run(case, core, number))
        return results


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    cores = [parse_core(words) for words in options.core or CORES]
    chosen = cases(options.source, options.ranks, options.over, options.only)
    suite = Suite(options.output, options.quiet_limit)
    # One job at a time where its ranks take all cores.
    workers = max(1, (os.cpu_count() or 1) // max(*options.ranks, 2))
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda case: suite.compare(case, cores), chosen))
    results = {
        (case, core.name): runs
        for case, compared in zip(chosen, found, strict=True)
        for core, runs in zip(cores, compared, strict=True)
    }
    rows = list(outcomes.different(cores, results))
    parts = {
        "Outcomes: passed / failed / skipped tests": outcomes.table(cores, results),
        "Differences": outcomes.table_of_differences(cores, rows),
    }
    text = "\n".join(line for title, lines in parts.items() for line in (f"# {title}", "", *lines, ""))
    (suite.output / "summary.md").write_text(text)
    print(text)
    return int(any(one[0] == "differs" for one in rows))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        sys.exit(main())
    except Stopped:
        print("horovod_suite: stopped; the same command continues", file=sys.stderr)
        sys.exit(1)
    except UserError as error:
        print(f"horovod_suite: {error}", file=sys.stderr)
        sys.exit(2)
