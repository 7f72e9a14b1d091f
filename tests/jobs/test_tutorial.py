"""The tutorial: its commands run in their order, and do what it says.

In processes, as a reader starts them; those that start no ranks, in the process of the test.
"""

import json
import re
import shlex

import pytest
from support.in_process import command
from support.jobs import ROOT, run

pytestmark = pytest.mark.needs("torch")
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def files() -> dict[str, str]:
    """What the reader writes: each file in backquotes right before a fenced block, and the block."""
    return dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.M | re.S))


def leave_pictures(folder):
    """A third of them."""
    for path in folder.glob("*/*.jpg"):
        if int(path.stem) >= 66:
            path.unlink()


@pytest.mark.matrix
def test_a_reader_comes_to_the_end(tmp_path):
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    said = {}
    for line in re.findall(r"^    ((?:hvdtrain|python) .*)$", PAGE, re.M):
        program, *words = shlex.split(line.replace("$CHECKOUT", shlex.quote(str(ROOT))))
        if program == "hvdtrain" and words[0] in ("show", "runs", "diff", "report", "predict", "export"):
            status, said[line] = command(tmp_path, *words)
        else:
            module = ["-m", "hvdtrain"] if program == "hvdtrain" else []
            status, said[line] = run(["python", *module, *words], tmp_path, 300)
        assert status == 0, f"{line}\n{said[line]}"
        if "shapes.py" in line:
            leave_pictures(tmp_path / "photos")
    results = {name: json.loads((tmp_path / "runs" / name / "result.json").read_text()) for name in ("first", "alone")}
    assert results["first"]["metrics"]["accuracy"] > 0.6
    assert "circle" in said["python classify.py photos/circle/000.jpg"]
    (difference,) = (text for line, text in said.items() if line.startswith("hvdtrain diff"))
    assert "strategy" in difference and "parameters" not in difference, difference
    assert len(said) >= 10
