"""Paths that a user names are relative to the folder in which the program was started, wherever its code goes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from hvdtrain.config.options import RuntimeOptions
from hvdtrain.system import start_folder

LEAVES = "import os; os.chdir('/')\n"
SHOWS = """
from hvdtrain.config.options import RuntimeOptions
given = RuntimeOptions(runs="../my runs", resume="old")
print(os.fspath(given.runs / "a"), f"{given.runs / 'a'} {given.resume}", sep="|")
"""
IMPORTS = "import os, hvdtrain\n"


ORDERS = [SHOWS, IMPORTS + LEAVES + SHOWS, SHOWS + LEAVES + SHOWS, LEAVES + SHOWS]
COMMANDS = [["prog.py"], ["../here/prog.py"], ["-m", "prog"]]
"""The last one has no relative path from which the folder is known, if it has left it before its imports."""


@pytest.mark.parametrize(("code", "command"), list(itertools.product(ORDERS, COMMANDS))[:-1])
def test_a_path_of_an_option_stays_where_the_program_was_started(tmp_path, code, command):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "prog.py").write_text("import os\n" + code)
    environment = {**os.environ, "PWD": str(folder)}  # as a shell has it
    shown = subprocess.run([sys.executable, *command], cwd=folder, env=environment, text=True, stdout=-1, check=True)
    line = f"{folder}/../my runs/a|../my runs/a old"
    assert shown.stdout.splitlines() == [line] * code.count(SHOWS)


def test_paths_in_a_notebook_are_those_of_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(RuntimeOptions().runs) == str(tmp_path / "runs")
    monkeypatch.chdir("/")
    monkeypatch.setattr(start_folder, "START", str(tmp_path))
    runs, auto = RuntimeOptions().runs, RuntimeOptions(name="a", resume="auto")
    assert (runs, f"{runs}", auto.auto_resume) == (tmp_path / "runs", "runs", True)
    assert f"{RuntimeOptions(runs=tmp_path).runs}" == str(tmp_path), "as it was given"
