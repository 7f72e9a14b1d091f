"""A misspelt command, option or choice: status 2, and the name that was probably meant."""

from __future__ import annotations

import pytest

from hvdtrain.__main__ import main
from hvdtrain.cli import training_options
from hvdtrain.cli.parser import Parser
from hvdtrain.errors import UserError


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("trian", "train"),
        ("launch lcal -n 2 -- x", "local"),
        ("launch local --restart 3 -n 2 -- x", "--restarts"),
        ("launch local -n 2 --restart=3 -- x --restart", "--restarts"),
        ("launch sbatch --nodes 2 --ranks-per-node 2 --via sru -- x", "srun"),
        ("doctor --only frameworkz", "frameworks"),
        ("doctor --jsn", "--json"),
        ("report runs --outptu x", "--output"),
        ("predict run a.png --framework pytorch", "torch"),
        ("bench --scaling weka", "weak"),
        ("sweep --set lrr=1 -- train", "lr"),
        ("sweep --set optimizer=adm -- train", "adam"),
        ("sweep --set lr=1 -- trian", "train"),
    ],
)
def test_commands(capsys, command, meant):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert f"(did you mean {meant}?)" in capsys.readouterr().err


@pytest.mark.parametrize("choices", ["'srun', 'mpirun'", "srun, mpirun"])
def test_choices_as_older_and_newer_pythons_name_them(capsys, choices):
    with pytest.raises(SystemExit):
        Parser(prog="p").error(f"argument --via: invalid choice: 'sru' (choose from {choices})")
    assert "(did you mean srun?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "meant"),
    [(["--framework", "torhc"], "torch"), (["--schedule=cosin"], "cosine"), (["--precision", "bf61"], "bf16")],
)
def test_training_options(options, meant):
    with pytest.raises(UserError, match=rf"no such choice \(did you mean {meant}\?\)"):
        training_options.parse(options, "train", "torch")


def test_predict_without_an_image(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["predict", "runs/NAME"])
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == "hvdtrain: no image was given; give image files after the run: predict RUN IMAGE...\n"
    )
