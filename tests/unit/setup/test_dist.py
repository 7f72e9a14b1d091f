"""What is published: the wheel has every file of the package, and says which version it is.

Processes: they build the wheel, and start the package in it.
"""

import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml
from support.jobs import ROOT

import hvdtrain

pytestmark = pytest.mark.needs()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "hvdtrain", source / "hvdtrain", ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, built], cwd=source, check=True, capture_output=True)
    (path,) = built.glob("*.whl")
    return path


def test_the_wheel_has_all_files_of_the_package(wheel):
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "hvdtrain").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == package


def test_the_wheel_runs(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-m", "hvdtrain", "--version"]
    said = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert said.stdout == f"{hvdtrain.__version__}\n", said.stderr


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == hvdtrain.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(citation["date-released"]))
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()
