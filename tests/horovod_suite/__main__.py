"""Run Horovod's own tests with two variants of its core, and compare: python -m horovod_suite --source DIR

Needs tests/ and the checkout on PYTHONPATH, as `make horovod-test SOURCE=DIR` sets it. The results of each case and
core stay in the output folder and are not run again. Ends with status 1 if a test's outcome with another core is not
that with the first core in any of three runs, and with status 2 for wrong input.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.jobs import end_all, pids, read_of_process

from hvdtrain.errors import UserError

MAX_RUNS, MAX_STOPS = 3, 8
"""MAX_STOPS: a file is not continued after so many tests that abort or hang."""
CORES = [["as-shipped", "HOROVOD_EVENT_DRIVEN=0"], ["event-driven", "HOROVOD_EVENT_DRIVEN=1"]]
STALL = "test_stall.py"  # a program, not tests of pytest
STALL_WARNING = "One or more tensors were submitted to be reduced"
ENDED = "(end)"
"""In place of a test: how a job ended that had no test to blame."""
Outcomes = dict[str, list[str]]
"""The outcome of each test on each rank."""


class Case(NamedTuple):
    """A file of tests and the job that runs it. over: gloo or mpi."""

    file: Path
    ranks: int
    over: str

    @property
    def name(self) -> str:
        return f"{self.file.stem}-{self.ranks}-{self.over}"


class Core(NamedTuple):
    """A variant of Horovod's core: the folder of an environment's programs, and variables."""

    name: str
    folder: Path
    variables: dict[str, str]


def parse_core(words: list[str]) -> Core:
    """From `NAME [FOLDER OF A VIRTUAL ENVIRONMENT] [VARIABLE=VALUE ...]`. Raises UserError for other words."""
    name, folder, variables = words[0], Path(sys.executable).parent, {}
    for word in words[1:]:
        variable, equals, value = word.partition("=")
        if equals:
            variables[variable] = value
        elif Path(word, "bin", "horovodrun").exists():
            folder = Path(word, "bin").resolve()
        else:
            reason = f"--core {name}: {word} is no VARIABLE=VALUE, and has no bin/horovodrun"
            raise UserError(reason, "name the folder of a virtual environment")
    return Core(name, folder, variables)


def cases(source: Path, ranks: list[int], over: list[str], only: list[str]) -> list[Case]:
    """All cases of a source tree with one of these parts in their names. Raises UserError if there are none."""
    folder = source.resolve() / "test"
    files = [*sorted((folder / "parallel").glob("test_*.py")), folder / "integration" / STALL]
    found = [Case(file, size, way) for file in files if file.exists() for way in over for size in ranks]
    chosen = [case for case in found if not only or any(part in case.name for part in only)]
    if not chosen:
        raise UserError(
            f"{source} has no tests of these names in test/parallel", "name a source tree of Horovod, as git has it"
        )
    return chosen


def command(case: Case, core: Core) -> list[str]:
    """The command line of a case: as in Horovod's own continuous integration (.buildkite/gen-pipeline.sh)."""
    places = ["-np", str(case.ranks), "-H", f"localhost:{case.ranks}"]
    if case.over == "gloo":
        launcher = [str(core.folder / "horovodrun"), "--gloo", *places]
    else:
        # Ranks that wait leave their cores to the others: they may be more than the cores.
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        launcher = ["mpirun", *as_root, *places, "--oversubscribe", "--bind-to", "none", "--map-by", "slot",
                    "--mca", "mpi_abort_print_stack", "1", "--mca", "mpi_yield_when_idle", "1"]  # fmt: skip
    python = [*launcher, str(core.folder / "python")]
    if case.file.name == STALL:
        return [*python, STALL]
    options = ["-p", "horovod_suite.recorder", "-p", "no:cacheprovider", "-v", "--capture=no",
               "--continue-on-collection-errors"]  # fmt: skip
    return [*python, "-m", "pytest", *options, case.file.name]


class Suite:
    """Runs cases, and keeps their results in the output folder.

    requirements: the folder with what the tests import. quiet_s: after so long without a test that starts or ends, a
    job counts as hung.
    """

    def __init__(self, output: Path, requirements: Path, quiet_s: float) -> None:
        self._output, self._requirements, self._quiet_s = output.resolve(), requirements, quiet_s

    def compare(self, case: Case, core: Core, reference: Core) -> dict[str, str]:
        """Each test that differs, with its outcomes in all runs; they are run again until they agree."""
        ours, theirs, differing = [], [], {}
        for number in range(1, MAX_RUNS + 1):
            theirs.append(self.run(case, reference, number))
            ours.append(self.run(case, core, number))
            differing = differences(theirs, ours)
            if "differs" not in {text.partition(":")[0] for text in differing.values()}:
                break
        return differing

    def run(self, case: Case, core: Core, number: int) -> Outcomes:
        """The result of a case's run of this number, from the output folder if it is there."""
        folder = self._output / core.name / case.name / f"run-{number}"
        with contextlib.suppress(FileNotFoundError):
            return json.loads((folder / "run.json").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        outcomes: Outcomes = {}
        for job in range(MAX_STOPS):
            if not self._run_job(case, core, folder / f"job-{job}", outcomes):
                break
        (folder / "run.json").write_text(json.dumps(outcomes, indent=1))
        print(f"{case.name}, {core.name}, run {number}: {counts(outcomes)}", flush=True)
        return outcomes

    def _run_job(self, case: Case, core: Core, job: Path, outcomes: Outcomes) -> bool:
        """Add the outcomes of a job; whether it stopped at a test, so that the tests after that are left."""
        job.mkdir(parents=True)
        (job / "done.json").write_text(json.dumps([*outcomes]))
        ended = self._watch(case, core, job)
        if case.file.name == STALL:
            warned = STALL_WARNING in (job / "log.txt").read_text(errors="replace")
            outcomes[STALL] = ["failed" if ended == "passed" and not warned else ended]
            return False
        records = [read_record(job / f"rank-{rank}.jsonl") for rank in range(case.ranks)]
        names = [*dict.fromkeys(name for record in records for name in record if name != ENDED)]
        # A rank can be one test ahead of the others: the first one is where the job stopped.
        started = [name for name in names if any(record.get(name) == "started" for record in records)]
        stopped = started[0] if started and ended != "passed" else ""
        for name in names[: names.index(stopped)] if stopped else names:
            outcomes[name] = [record.get(name, "not run") for record in records]
        if stopped:
            outcomes[stopped] = [ended] * case.ranks  # which of its ranks were ended first is chance
        elif ended != "passed":
            outcomes[ENDED] = [ended] * case.ranks
        return bool(stopped)

    def _watch(self, case: Case, core: Core, job: Path) -> str:
        """Start a job and wait for its end: `passed`, `aborted` (status not 0) or `hung`."""
        with (job / "log.txt").open("w") as log:
            process = subprocess.Popen(
                command(case, core), cwd=case.file.parent, env=self._environment(core, job), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        seen, size = time.monotonic(), -1
        try:
            while process.poll() is None:
                total = sum(path.stat().st_size for path in job.glob("rank-*.jsonl"))
                if total != size:
                    seen, size = time.monotonic(), total
                if time.monotonic() - seen > self._quiet_s:
                    return "hung"
                time.sleep(0.1)
        finally:
            process.terminate()  # a launcher ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            end_all(lambda: processes_of(job))
            process.wait()
        return "passed" if process.returncode == 0 else "aborted"

    def _environment(self, core: Core, job: Path) -> dict[str, str]:
        """A core's PYTHONPATH comes before ours. Ranks write their stacks a second before a job counts as hung."""
        places = [core.variables.get("PYTHONPATH", ""), str(Path(__file__).parents[1]), str(self._requirements)]
        return {
            **os.environ,
            "PATH": f"{core.folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",  # nothing is written into the source tree
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "HOROVOD_SUITE_RECORDS": str(job),
            "HOROVOD_SUITE_QUIET_S": str(max(self._quiet_s - 1, 1.0)),
            **core.variables,
            "PYTHONPATH": os.pathsep.join(place for place in places if place),
        }


def processes_of(job: Path) -> list[int]:
    """Process ids of a job: those that have its folder in their environment; launchers start sessions of their own."""
    mark = f"HOROVOD_SUITE_RECORDS={job}".encode()
    return [pid for pid in pids() if mark in read_of_process(pid, "environ")]


def read_record(path: Path) -> dict[str, str]:
    """The outcome of each test on a rank. A last line that was cut off does not count."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return dict(map(json.loads, lines))


def counts(outcomes: Outcomes) -> str:
    """How many tests have each outcome, that of a test being all that its ranks have."""
    found = Counter("/".join(sorted({*ranks})) for ranks in outcomes.values())
    return ", ".join(f"{count} {name}" for name, count in found.most_common())


def differences(reference: list[Outcomes], others: list[Outcomes]) -> dict[str, str]:
    """Tests whose outcomes are not the same in all runs of two cores: `differs`, or `flaky` if some runs agree."""
    found = {}
    for name in dict.fromkeys(name for run in [*reference, *others] for name in run):
        one, other = ([tuple(run.get(name, ["not run"])) for run in runs] for runs in (reference, others))
        if len({*one, *other}) > 1:
            verdict = "flaky" if {*one} & {*other} else "differs"
            found[name] = f"{verdict}: {shown(one)} | {shown(other)}"
    return found


def shown(runs: list[tuple[str, ...]]) -> str:
    return ", ".join("/".join(ranks if len({*ranks}) > 1 else ranks[:1]) for ranks in runs)


def install_requirements() -> Path:
    """The folder with what Horovod's tests import; installed once, with checksums. Raises UserError."""
    file = Path(__file__).with_name("requirements.txt")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hvdtrain")
    folder = cache / f"horovod-suite-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        new = folder.with_suffix(f".{os.getpid()}")
        install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        done = subprocess.run([sys.executable, *install, "--target", str(new), "-r", str(file)])
        if done.returncode:
            raise UserError("the packages that Horovod's tests need cannot be installed", "see pip's error above")
        new.rename(folder)
    return folder


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


def compared(options: argparse.Namespace) -> Iterator[str]:
    """A line for each test that differs."""
    reference, *cores = [parse_core(words) for words in options.core or CORES]
    suite = Suite(options.output, install_requirements(), options.quiet_limit)
    for case in cases(options.source, options.ranks, options.over, options.only):
        for core in cores:
            for name, text in suite.compare(case, core, reference).items():
                yield f"{case.name}, {core.name}, {name}: {text}"


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    lines = [*compared(options)]
    text = "\n".join(lines or ["All outcomes are the same."])
    (options.output / "summary.txt").write_text(text + "\n")
    print(text)
    return int(any(": differs: " in line for line in lines))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C, it ends the running job
    try:
        sys.exit(main())
    except UserError as error:
        print(f"horovod_suite: {error}", file=sys.stderr)
        sys.exit(2)
