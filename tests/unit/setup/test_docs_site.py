"""The site of the documentation."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import ROOT

import hvdtrain


@pytest.mark.matrix  # it may download Sphinx
@pytest.mark.needs()
def test_the_site_has_no_broken_link_and_lists_its_versions(tmp_path):
    (tmp_path / "0.0.1").mkdir()
    (tmp_path / "0.0.1" / "index.html").touch()
    environment = Path(sys.executable).parents[1]
    command = [ROOT / "setup" / "docs.sh", environment, tmp_path]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    versions = (tmp_path / "index.html").read_text()
    assert all(f'href="{version}/index.html"' in versions for version in ("0.0.1", hvdtrain.__version__))
    api = (tmp_path / hvdtrain.__version__ / "docs" / "api.html").read_text()
    assert "hvdtrain.fit" in api and "UserLoop.step" in api
