"""The script of `hvdtrain completion`. Processes: bash runs it."""

from __future__ import annotations

import subprocess

import pytest

from hvdtrain.__main__ import main
from hvdtrain.cli import COMMANDS


def completed(script, *words: str, cwd=None) -> list[str]:
    """What bash offers for the last of these words of a command line."""
    program = (
        f"source '{script}'; COMP_WORDS=(hvdtrain {' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words)}; "
        '_shtab_hvdtrain; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=cwd).stdout.split()


def test_commands_options_values_and_files_are_completed(tmp_path, capsys):
    main(["completion", "bash"])
    script = tmp_path / "hvdtrain.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "run.toml").touch()
    assert completed(script, "") == list(COMMANDS)
    assert "--restarts" in completed(script, "launch", "local", "--res")
    assert {"--batch-size", "--batch-scope"} <= {*completed(script, "train", "--batch")}
    assert {"book", "xavier", "he"} == {*completed(script, "train", "--init", "")}
    assert "--trial" in completed(script, "sweep", "--t")
    assert "run.toml" in completed(script, "train", "--config", "", cwd=tmp_path)


def test_another_shell_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "bsh"])
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (2, 1)
    assert error.startswith("hvdtrain: bsh: no such choice (did you mean bash?); choose one of bash, zsh")
