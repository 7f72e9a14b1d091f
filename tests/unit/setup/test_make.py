"""Each target of the Makefile does what its help says, in its cheapest form, below a folder with a blank and an umlaut.

Processes: make starts programs of the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.environment import of_jobs, script
from support.jobs import BIN, ROOT
from support.setup import pinned_uv
from support.stack import FASTEST

import hvdtrain

TARGETS = re.findall(r"^([a-z0-9-]+):(?![=:])(?! *\w+ *=)(?! export)", (ROOT / "Makefile").read_text(), re.M)
SHORT_FILE, MATRIX_FILE = "tests/unit/system/test_phases.py", "tests/jobs/test_links_benchmark.py"
A_TEST = f"ARGS=--collect-only -q {SHORT_FILE}"
PRINTED = ("--dry-run",)
"""Of a target that takes minutes, downloads gigabytes, or needs an engine or a GPU: only what it would run."""


class Form(NamedTuple):
    words: tuple[str, ...]
    """For the command line of make."""
    said: str
    """A part of the output."""
    status: int = 0


FORMS = {
    "help": Form((), "make docker-build"),
    "setup": Form(("STACK=none",), "STACK=none is not a stack", 2),
    "packages": Form(("STACK=none",), "STACK=none is not a stack", 2),
    "wheel": Form(PRINTED, "setup/wheel.sh"),  # tests/jobs/test_wheels.py runs it
    "train": Form((f"FRAMEWORK={FASTEST}", "ARGS=--max-steps 2"), "test accuracy"),
    "test": Form((A_TEST,), "test_phases.py"),
    "test-all": Form(("ARGS=--version",), "pytest "),
    "test-avx2": Form(("ARGS=--collect-only -q",), ""),
    "test-matrix": Form((A_TEST.replace(SHORT_FILE, MATRIX_FILE), "PART=1/1"), MATRIX_FILE),
    "test-gpu": Form(PRINTED, "tests/gpu"),
    "test-machines": Form(("ARGS=--list",), "debian-12-root/train"),
    "fuzz": Form(("FUZZ_MINUTES=0", "ARGS=tf_config"), "passed"),
    "chaos": Form(("ARGS=--help",), "--only"),
    "horovod-test": Form(("ARGS=--help",), "--core"),
    "lint": Form(PRINTED, "mypy hvdtrain"),  # .ci/run runs it
    "format": Form((), "All checks passed!"),
    "bench": Form(PRINTED, "benchmarks/goals.py"),
    "lock": Form((), "uv pip compile"),
    "docs": Form(PRINTED, "setup/docs.sh"),  # a test below runs it
    "dist": Form(PRINTED, "setup/dist.sh"),
    "audit": Form(PRINTED, "setup/audit.sh"),
    **{f"docker-{name}": Form(("ENGINE=none",), "no none on PATH", 2) for name in ("build", "run", "test")},
    "clean": Form((), ""),
    "distclean": Form(("VENV=none",), ""),
    "docs-pictures": Form(PRINTED, "docs/pictures/web.py"),
    "docs-options": Form((), ""),
    "docs-guarantees": Form(PRINTED, "docs/guarantees.py"),  # tests/unit/test_docs.py runs it
}
"""Set-up itself is not run here: the environment is the one of the tests, and make takes `setup` for done."""


def test_each_target_has_a_form():
    assert [name for name in TARGETS if name not in FORMS] == [], "how does this file run them?"
    assert [name for name in FORMS if name not in TARGETS] == [], "the Makefile has them no longer"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout's files, which targets may change, in a repository of its own."""
    if not shutil.which("git"):
        pytest.skip("needs git")
    copy = tmp_path_factory.mktemp("a copy für make") / "hvdtrain"
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a copy"]):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words], cwd=copy, check=True)
    return copy


def make(checkout: Path, target: str, *words: str, **environment: str) -> tuple[int, str]:
    """Exit status and output."""
    python = os.path.realpath(sys.executable)  # without the packages of the environment
    command = ["make", "--no-print-directory", "WORKERS=0", *words, target]
    command += [] if target in ("setup", "packages") else ["--old-file=setup"]
    given = {"VENV": str(BIN.parent), "BASE_PYTHON": python, **environment}
    done = subprocess.run(command, cwd=checkout, env=of_jobs(**given), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def require_index(checkout: Path) -> None:
    """Skip where packages cannot be had at all."""
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0", "wheel"]
    if subprocess.run([*download, "-d", checkout / "build"], env=of_jobs(), capture_output=True).returncode:
        pytest.skip("needs an index of packages")


@pytest.mark.parametrize("target", FORMS)
def test_a_target_does_what_it_says(checkout, target, tmp_path):
    words, said, status = FORMS[target]
    environment = {}
    if target == "lock":  # each file that uv is to read is there
        reads = 'for word; do case $word in *.in | *.txt) cat "$word" || exit; esac; done >/dev/null'
        script(tmp_path / "uv", reads, 'echo uv "$@"')
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if target == "train":  # horovodrun writes nothing there
        environment = {"HOME": "/proc/missing"}
    (checkout / "build").mkdir(exist_ok=True)  # for clean
    got, output = make(checkout, target, *words, **environment)
    assert got == status and said in output, output
    assert (target in ("clean", "distclean")) <= (not (checkout / "build").exists())


def test_the_site_has_no_broken_link_and_lists_its_versions(checkout):
    site = checkout / "build" / "site"
    (site / "0.0.1").mkdir(parents=True)
    (site / "0.0.1" / "index.html").touch()
    # A locale that is not UTF-8, and settings with which Python has no docstrings and does not import what lies here.
    odd = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONOPTIMIZE": "2", "PYTHONSAFEPATH": "1"}
    status, output = make(checkout, "docs", **odd)
    if status and "check the network" in output:
        require_index(checkout)
    assert status == 0, output
    versions = (site / "index.html").read_text()
    assert all(f'href="{version}/index.html"' in versions for version in ("0.0.1", hvdtrain.__version__))
    api = (site / hvdtrain.__version__ / "docs" / "reference.html").read_text()
    assert "hvdtrain.fit" in api and "UserLoop.step" in api


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_runs_exists(checkout, target):
    _, output = make(checkout, target, *PRINTED)
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    for name in re.findall(rf"(?<![\w./])((?:{folders})/[\w/.-]+\.\w+)", output):
        assert (checkout / name).exists() or name.startswith(("build/", "dist/")), output


def test_targets_do_not_change_what_is_in_git(checkout):
    """Neither formatting nor the tables of the pages: the tests above have run them."""
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    assert subprocess.run(status, cwd=checkout, capture_output=True, text=True).stdout == ""


def test_pages_name_targets_that_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("setup/*.sh")]
    for page in pages:
        named = re.findall(r"(?:`|^ {4}(?:\w+=\S+ )*)(?:\w+=\S+ )*make ([a-z][a-z0-9-]+)", page.read_text(), re.M)
        assert {*named} <= {*TARGETS}, page.name


@pytest.mark.matrix  # it may download packages
@pytest.mark.parametrize("target", ["dist", "lint", "lock"])
def test_a_target_that_takes_longer_works(checkout, target):
    require_index(checkout)
    environment = {}
    if target == "lock":
        uv = pinned_uv() or pytest.skip("needs uv")
        environment = {"PATH": f"{Path(uv).parent}:{os.environ['PATH']}"}
    status, output = make(checkout, target, **environment)
    assert status == 0, output
