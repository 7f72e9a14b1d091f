"""The script of `hvdtrain completion`, as bash runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hvdtrain.cli import COMMANDS


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    made = subprocess.run([sys.executable, "-m", "hvdtrain", "completion", "bash"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    path = tmp_path_factory.mktemp("completion") / "hvdtrain.bash"
    path.write_text(made.stdout)
    return path


def completed(script, *words: str, cwd=None) -> list[str]:
    """What bash offers for the last of these words of a command line."""
    program = (
        f"source '{script}'; COMP_WORDS=(hvdtrain {' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words)}; "
        '_shtab_hvdtrain; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=cwd).stdout.split()


def test_commands_options_values_and_files_are_completed(script, tmp_path):
    (tmp_path / "run.toml").touch()
    assert completed(script, "") == list(COMMANDS)
    assert "--restarts" in completed(script, "launch", "local", "--res")
    assert {"--batch-size", "--batch-scope"} <= {*completed(script, "train", "--batch")}
    assert {"book", "xavier", "he"} == {*completed(script, "train", "--init", "")}
    assert "--trial" in completed(script, "sweep", "--t")
    assert "run.toml" in completed(script, "train", "--config", "", cwd=tmp_path)


def test_another_shell_is_one_line():
    command = [sys.executable, "-m", "hvdtrain", "completion", "bsh"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("hvdtrain: bsh: no such choice (did you mean bash?); choose one of bash, zsh")
    assert ended.stderr.count("\n") == 1
