"""The conversions of docs/coming-from.md: the converted programs train, and the table counts their lines.

Each is a program that a user starts.
"""

import ast
import re

import pytest
from support.jobs import ROOT, launcher, records, result, succeed
from support.stack import require

PAGE = (ROOT / "docs" / "coming-from.md").read_text()
DIFFS = {title: text.splitlines() for title, text in re.findall(r"^## (.*)\n+```diff\n((?s:.*?))^```", PAGE, re.M)}
SCRIPTS = [title for title in DIFFS if title != "Keras"]


def side(title: str, sign: str) -> str:
    """The program of one side of a diff, before (-) or after (+)."""
    return "\n".join(line[1:] for line in DIFFS[title] if line[:1] in (sign, " ", "")) + "\n"


@pytest.mark.needs()
def test_the_table_counts_the_lines_of_each_program():
    for title, lines in DIFFS.items():
        ast.parse(side(title, "-"))
        counts = [sum(line.startswith(sign) for line in lines) for sign in "-+"]
        row = rf"^\| \[.*\]\(#{title.lower().replace(' ', '-')}\) \| {counts[0]} \| {counts[1]} \|"
        assert re.search(row, PAGE, re.M), (title, counts)


@pytest.mark.needs("torch")
def test_the_converted_script_trains_on_two_ranks(tmp_path):
    assert len({side(title, "+") for title in SCRIPTS}) == 1, "the programs end as the same one"
    (tmp_path / "train.py").write_text(side(SCRIPTS[0], "+"))
    succeed([*launcher("local", 2), "python", "train.py", "--epochs", "3", "--name", "converted"], tmp_path)
    first, *_, last = records(tmp_path / "runs/converted", "train")
    assert last["epoch"] == 3 and last["loss"] < 0.6 * first["loss"]


@pytest.mark.needs("torch")
def test_horovods_program_is_one_that_horovod_trains(tmp_path):
    require("horovod.torch")
    (tmp_path / "train.py").write_text(side("Horovod", "-"))
    succeed(["python", "train.py"], tmp_path)


@pytest.mark.needs("tensorflow")
def test_the_converted_task_trains(tmp_path):
    (tmp_path / "train.py").write_text(side("Keras", "+"))
    options = "--framework tensorflow --strategy single --optimizer adam --lr 0.05 --epochs 3 --name converted"
    succeed(["python", "-m", "hvdtrain", "train", "train.py:Task", *options.split()], tmp_path)
    assert result(tmp_path / "runs/converted")["metrics"]["accuracy"] > 0.8
