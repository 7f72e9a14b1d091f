"""An environment whose Python finds hvdtrain in a checkout, from any working directory, which needs processes."""

import subprocess
import venv

import pytest
from support.environment import of_jobs
from support.jobs import ROOT

from hvdtrain import __version__


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment; its checkout has a name that Python and the locale need not have."""
    made = tmp_path_factory.mktemp("made")
    (made / "a 'checkout' é").symlink_to(ROOT)
    venv.create(made / "venv", symlinks=True)
    program = made / "venv" / "bin" / "python"
    subprocess.run([program, "-I", ROOT / "setup" / "checkout.py", made / "a 'checkout' é"], check=True)
    return program


def run(python, folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *words], cwd=folder, env=of_jobs(PYTHONPATH=""), capture_output=True, text=True)


ENTRIES = {
    "module": ["-m", "hvdtrain", "--version"],
    "script": ["script.py"],
    "code": ["-c", "import hvdtrain; print(hvdtrain.__version__)"],
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_folder_called_hvdtrain_hides_no_package(python, tmp_path, entry):
    (tmp_path / "hvdtrain" / "hvdtrain").mkdir(parents=True)  # a clone, which is no package itself
    (tmp_path / "script.py").write_text(ENTRIES["code"][1])
    done = run(python, tmp_path, *ENTRIES[entry])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_other_folders_of_the_checkout_are_no_packages(python, tmp_path):
    program = "import importlib.util as u; print([name for name in ('docker', 'tests', 'setup') if u.find_spec(name)])"
    assert run(python, tmp_path, "-c", program).stdout == "[]\n"


def test_another_package_of_that_name_comes_first(python, tmp_path):
    """Such as that of another checkout in which a developer works."""
    (tmp_path / "hvdtrain").mkdir()
    (tmp_path / "hvdtrain" / "__init__.py").write_text("print('here')")
    assert run(python, tmp_path, "-c", "import hvdtrain").stdout == "here\n"
