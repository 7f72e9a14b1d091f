"""Misspelt names get those that were probably meant, bash completes them, and unusable paths are one line."""

import argparse
import re
import subprocess
import sys

import pytest
from support.options import parse
from support.report import make_run

from hvdtrain.__main__ import main
from hvdtrain.cli import COMMANDS, bench, doctor
from hvdtrain.errors import UserError
from hvdtrain.system.files import NOT_LOCAL


def ended(command):
    """The exit status of a command, whose error is printed."""
    try:
        if command[0] == "train":  # as training would end the process
            parse(command[1:])
            return 0
        main(command)
    except UserError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        return error.exit_status
    except SystemExit as exited:
        return exited.code
    return 0


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("trian", "train"),
        ("launch lcal -n 2 -- x", "local"),
        ("launch local -n 2 --restart=3 -- x --restart", "--restarts"),
        ("launch sbatch --nodes 2 --ranks-per-node 2 --via sru -- x", "srun"),
        ("doctor --only frameworkz", "frameworks"),
        ("report runs --outptu x", "--output"),
        ("sweep --set lrr=1 -- train", "lr"),
        ("sweep --set optimizer=adm -- train", "adam"),
        ("completion bsh", "hvdtrain: bsh: no such choice (did you mean bash?); choose one of bash, zsh"),
        ("predict runs/NAME", "hvdtrain: the following arguments are required: FILES; "),
    ],
)
def test_commands(capsys, command, text):
    assert ended(command.split()) == 2
    assert (text if " " in text else f"(did you mean {text}?)") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text"),
    [("report runs --outptu x", "(did you mean --output?)"), ("runs --sotr", "(did you mean --sort?)")],
)
def test_whichever_methods_argparse_calls_in_a_version_of_python(capsys, monkeypatch, command, text):
    """From 3.13.5, options between arguments are not parsed by the method that parses others."""
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_known_intermixed_args", argparse.ArgumentParser.parse_known_args
    )
    assert ended(command.split()) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "meant"),
    [(["--framework", "torhc"], "torch"), (["--init=xaver"], "xavier"), (["--precision", "bf61"], "bf16")],
)
def test_training_options(options, meant):
    with pytest.raises(UserError, match=rf"is not valid \(did you mean {meant}\?\)") as caught:
        parse(options, framework="torch")
    assert caught.value.option == options[0][2:].partition("=")[0]


def completed(script, *words: str, cwd=None) -> list[str]:
    """What bash offers for the last of these words of a command line."""
    program = (
        f"source '{script}'; COMP_WORDS=(hvdtrain {' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words)}; "
        '_hvdtrain; printf "%s\\n" "${COMPREPLY[@]}"'
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
    assert {"--ranks", "--help"} <= {*completed(script, "train", "-")}
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for line, expected in LINES.items():
        assert sorted(completed(script, *line.split(" "), cwd=tmp_path)) == sorted(expected.split()), line


LINES = {
    "train --data d": "digits",
    "train --data ": "digits synthetic fashion-mnist mnist cifar10 runs hvdtrain.bash run.toml",
    "train --data = m": "mnist",  # the words that bash makes of --data=m
    "train --optimizer =": "sgd adam adamw",
    "train --model r": "resnet20 runs run.toml",
    "train --recipe f": "fashion",
    "train --tracker w": "wandb",
    "train --strategy ri": "ring",
    "train -n 2 --res": "--restarts --resume",
    "train --resume runs/f": "runs/first runs/first",  # bash shows one
    "show f": "first",
    "report runs/f": "runs/first runs/first",
    "launch local -n 2 -- ": "hvdtrain python",
    "launch local -n 2 -- python -m h": "hvdtrain hvdtrain.torch_lenet hvdtrain.mxnet_lenet hvdtrain.tensorflow_lenet",
    "launch local -n 2 -- python -m hvdtrain tr": "train",
    "launch local -n 2 -- a/bin/python3 -m hvdtrain train --epo": "--epochs",
    "launch local -n 2 -- python -m hvdtrain.mxnet_lenet --data f": "fashion-mnist",
    "launch local -n 2 -- hvdtrain train --precision b": "bf16",
    "sweep --set lr=1,2 -- t": "train",
    "sweep --set lr=1,2 -- train -n 2 --mode": "--model",
    "sweep -- launch local -n 2 -- hvdtrain train --lr-": "",
    "sweep -- launch local -n 2 -- hvdtrain show f": "first",
}
"""Command lines, of which the last word is completed, and what bash offers."""


@pytest.mark.parametrize(
    "command",
    [
        "bench --output {} --rows torch/single",
        "doctor --output {}/file",
        "report run --output {}",
        "scale run --link 5/1 --output {}",
    ],
)
@pytest.mark.parametrize("place", ["/proc/x", "file", "file/below"])
def test_folder_that_cannot_be_written(tmp_path, capsys, monkeypatch, command, place):
    (tmp_path / "file").touch()
    make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "all_rows", list)
    monkeypatch.setattr(bench, "choose", lambda *_: [])
    for module, name in ((bench, "plan"), (doctor, "examine")):
        monkeypatch.setattr(module, name, pytest.fail)
    assert ended(command.format(place).split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hvdtrain: --output {place}: nothing can be written there (")
    assert error.count("\n") == 1


PATHS = [
    "train --runs {}",
    "train --resume {}",
    "train --config {}",
    "train --data {}",
    "train --weights {}",
    "launch local --output-dir {} -- x",
    "launch horovodrun -n 1 --hostfile {} -- x",
    "sweep --output {} -- train",
    "bench --output {}",
    "scale {} --link 5/1",
    "scale run --link 5/1 --output {}",
    "scale run --allreduce {}",
    "report {}",
    "report run --output {}",
    "doctor --output {}",
    "doctor --runs {}",
    "diff run {}",
    "watch {}",
    "watch --serve localhost:0 --token-file {}",
    "runs {}",
    "show {}",
    "predict {} image.png",
    "predict run {}",
    "export {} model.onnx",
    "export run {}",
]
"""Every option that is a path."""
READ = re.compile(r"train --(resume|config)|--token-file|^(scale|report|predict|export|show|watch) {}|diff")


@pytest.mark.parametrize("command", PATHS)
def test_no_path_may_be_a_url(tmp_path, capsys, monkeypatch, command):
    make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/runs", "https://host/a", "file:///a", "gs:/a") if command == PATHS[0] else ("s3://b/a",):
        assert ended([word.replace("{}", url) for word in command.split()]) == 2
        error = capsys.readouterr().err
        assert NOT_LOCAL in error and "give another" not in error and error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("place", ["nowhere/below/x", "file/below", "folder"])
@pytest.mark.parametrize("command", [one for one in PATHS if READ.search(one)])
def test_a_path_that_cannot_be_read_is_one_line(tmp_path, capsys, monkeypatch, command, place):
    """A missing parent, a file as a folder, and a folder with nothing in it as a file or run."""
    make_run(tmp_path / "run")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    status = ended([word.replace("{}", place) for word in command.split()])
    printed = capsys.readouterr()
    assert status in (1, 2) and printed.err.count("\n") == 1, (status, printed)
    assert {path.name for path in tmp_path.iterdir()} - {"runs"} == {"run", "file", "folder"}  # scale makes its own
