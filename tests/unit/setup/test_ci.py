"""Continuous integration tests what is committed, in a folder with the README's name.

Processes: .ci/run is a shell script; make and apt-get are replaced.
"""

import os
import shutil
import subprocess

import pytest
from support.environment import of_jobs, script
from support.jobs import ROOT

pytestmark = pytest.mark.needs()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_steps_run_in_a_clone_and_the_first_failure_ends_them(tmp_path):
    repository = tmp_path / "a copy" / "other"
    for name in (".ci/run", "setup/whole.sh"):
        script(repository / name, "").write_bytes((ROOT / name).read_bytes())
    (repository / "kept").touch()
    (tmp_path / "a copy" / "shared" / "data").mkdir(parents=True)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=repository, check=True)
    (repository / "forgotten").touch()
    script(tmp_path / "bin" / "apt-get", "exit 0")
    script(tmp_path / "bin" / "make", 'echo "$@ in ${PWD##*/}:" * "$HVDTRAIN_DATA"', "[ $1 != test ]")
    environment = of_jobs(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    environment.pop("HVDTRAIN_DATA", None)
    done = subprocess.run([repository / ".ci" / "run"], cwd="/", env=environment, capture_output=True, text=True)
    place = f"in hvdtrain: kept setup {repository}/../shared/data"
    assert done.stdout.splitlines()[:3] == ["what is not committed is not tested", f"lint {place}", f"test {place}"]
    assert (done.returncode, done.stderr, [*(repository / "build").iterdir()]) == (1, "", [])
