"""A misspelt command, option or choice: status 2, and the name that was probably meant."""

from __future__ import annotations

import pytest
from support.options import parse

from hvdtrain.__main__ import main
from hvdtrain.errors import UserError


@pytest.mark.parametrize(
    ("command", "text"),
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
        ("predict runs/NAME", "hvdtrain: no image was given; give image files after the run: predict RUN IMAGE...\n"),
    ],
)
def test_commands(capsys, command, text):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert (text if " " in text else f"(did you mean {text}?)") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "meant"),
    [(["--framework", "torhc"], "torch"), (["--schedule=cosin"], "cosine"), (["--precision", "bf61"], "bf16")],
)
def test_training_options(options, meant):
    with pytest.raises(UserError, match=rf"is not valid \(did you mean {meant}\?\)") as caught:
        parse(options, framework="torch")
    assert caught.value.option == options[0][2:].partition("=")[0]
