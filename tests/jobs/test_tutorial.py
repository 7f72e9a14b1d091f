"""The tutorial: its commands run in their order, and do what it says."""

import json
import re
import shlex

import pytest
from support.jobs import ROOT, run

pytestmark = pytest.mark.needs("torch")
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def files() -> dict[str, str]:
    """What the reader writes: each file in backquotes right before a fenced block, and the block."""
    return dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.M | re.S))


def test_a_reader_comes_to_the_end(tmp_path):
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    said = {}
    for line in re.findall(r"^    ((?:hvdtrain|python) .*)$", PAGE, re.M):
        command = shlex.split(line.replace("$CHECKOUT", shlex.quote(str(ROOT))))
        if command[0] == "hvdtrain":
            command = ["python", "-m", *command]
        status, said[line] = run(command, tmp_path, 300)
        assert status == 0, f"{line}\n{said[line]}"
    results = {name: json.loads((tmp_path / "runs" / name / "result.json").read_text()) for name in ("first", "alone")}
    assert results["first"]["metrics"]["accuracy"] > 0.8
    assert "circle" in said["python classify.py photos/circle/000.jpg"]
    (difference,) = (text for line, text in said.items() if line.startswith("hvdtrain diff"))
    assert "strategy" in difference and "parameters" not in difference, difference
    assert len(said) >= 10
