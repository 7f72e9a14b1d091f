"""Which files of a Horovod source tree are run, on how many ranks, and by which command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError

STALL = "test_stall.py"  # a program, not tests of pytest


class Case(NamedTuple):
    """A file of tests and the job that runs it."""

    file: Path
    ranks: int
    over: str
    """gloo or mpi."""

    @property
    def name(self) -> str:
        return f"{self.file.stem}-{self.ranks}-{self.over}"


class Core(NamedTuple):
    """A variant of Horovod's core: a virtual environment with a build of it, and variables."""

    name: str
    folder: Path
    """The environment's folder with its programs."""
    variables: dict[str, str]


def parse_core(words: list[str]) -> Core:
    """From `NAME [FOLDER OF A VIRTUAL ENVIRONMENT] [VARIABLE=VALUE ...]`.

    Raises UserError for a word that is neither.
    """
    name, folder, variables = words[0], Path(sys.executable).parent, {}
    for word in words[1:]:
        variable, equals, value = word.partition("=")
        if equals:
            variables[variable] = value
        elif Path(word, "bin", "horovodrun").exists():
            folder = Path(word, "bin").resolve()
        else:
            raise UserError(
                f"--core {name}: {word} is no VARIABLE=VALUE, and has no bin/horovodrun",
                "name the folder of a virtual environment",
            )
    return Core(name, folder, variables)


def cases(source: Path, ranks: list[int], over: list[str], only: list[str]) -> list[Case]:
    """All cases of a source tree; `only` are parts of their names.

    Raises UserError if the tree has no tests, or none is left.
    """
    folder = source.resolve() / "test"
    parallel = sorted((folder / "parallel").glob("test_*.py"))
    if not parallel:
        raise UserError(f"{source} has no test/parallel/test_*.py", "name a source tree of Horovod, as git has it")
    files = [*parallel, folder / "integration" / STALL]
    found = [Case(file, size, way) for file in files for way in over for size in ranks]
    chosen = [case for case in found if case.file.exists() and (not only or any(part in case.name for part in only))]
    if not chosen:
        raise UserError(f"no case has a part of its name in {' '.join(only)}", "name parts such as test_torch-2-gloo")
    return chosen


def command(case: Case, core: Core) -> list[str]:
    """The command line of a case: as in Horovod's own continuous integration (.buildkite/gen-pipeline.sh)."""
    python = str(core.folder / "python")
    options = ["-p", "horovod_suite.recorder", "-p", "no:cacheprovider", "-v", "--capture=no",
               "--continue-on-collection-errors"]  # fmt: skip
    pytest = [python, "-m", "pytest", *options, case.file.name]
    return [*launcher(case, core), *([python, case.file.name] if case.file.name == STALL else pytest)]


def launcher(case: Case, core: Core) -> list[str]:
    """The command line that starts the ranks of a case on this machine."""
    places = ["-np", str(case.ranks), "-H", f"localhost:{case.ranks}"]
    if case.over == "gloo":
        return [str(core.folder / "horovodrun"), "--gloo", *places]
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Ranks that wait leave their cores to the others: they may be more than the cores.
    return ["mpirun", *as_root, *places, "--oversubscribe", "--bind-to", "none", "--map-by", "slot",
            "--mca", "mpi_abort_print_stack", "1", "--mca", "mpi_yield_when_idle", "1"]  # fmt: skip


def environment(case: Case, core: Core, requirements: Path, records: Path, quiet_s: float) -> dict[str, str]:
    """The environment of a case's processes; a core's PYTHONPATH comes before ours. quiet_s: see `recorder.py`."""
    places = [core.variables.get("PYTHONPATH", ""), str(Path(__file__).parents[1]), str(requirements)]
    return {
        **os.environ,
        "PATH": f"{core.folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",  # nothing is written into the source tree
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "HOROVOD_SUITE_RECORDS": str(records),
        "HOROVOD_SUITE_QUIET_S": str(max(quiet_s, 1.0)),
        **core.variables,
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
    }
