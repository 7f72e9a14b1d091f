"""What keeps the package easy to read: short files, and one name for one thing."""

import ast
from collections import defaultdict

from support.jobs import ROOT

MAX_LINES = 350
FILES = sorted((ROOT / "hvdtrain").rglob("*.py"))


def test_files_are_short():
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_one_place_offers_a_resume():
    """It knows whether a checkpoint is there; a job that was asked to stop has just written one."""
    offers = [str(path.relative_to(ROOT / "hvdtrain")) for path in FILES if "with --resume {" in path.read_text()]
    assert offers == ["system/run_end.py", "training/ranks.py"]


def test_class_names_are_unique():
    """Two classes of one name are two things in one search, and in the head of the reader."""
    defined = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in defined.items() if len(places) > 1 and name[0] != "_"} == {}
