"""The map of tests/support names each of its files, and tests/unit has the folders of what it tests."""

import re

from support.jobs import ROOT

SUPPORT = ROOT / "tests" / "support"


def test_the_map_names_each_file():
    named = re.findall(r"`((?:tasks/|drawn/)?\w+\.py)`", (SUPPORT / "README.md").read_text())
    files = {str(path.relative_to(SUPPORT)) for path in SUPPORT.rglob("*.py")} - {"__init__.py"}
    assert set(named) == files and len(named) == len(files)


def test_folders_of_unit_tests_mirror_the_package():
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {unit.relative_to(unit)}
    for folder in folders:
        tested = [top / folder for top in (ROOT / "hvdtrain", ROOT, ROOT / "tests")]
        assert any(path.is_dir() for path in tested), f"{folder} tests a folder that does not exist"
