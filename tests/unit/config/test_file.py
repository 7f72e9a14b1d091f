"""Options from a TOML file: what is accepted, what overrides what, and --print-config, whose output is such a file."""

from pathlib import Path

import pytest
from support.errors import refused
from support.options import parse

from hvdtrain.config.sources import CommandLine, run_folder
from hvdtrain.errors import UserError
from hvdtrain.networks.registry import find_network
from hvdtrain.runs import record

PROGRAM = "program"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda content: Path("run.toml").write_bytes(content if isinstance(content, bytes) else content.encode())


def test_file_overrides_the_recipe_and_the_command_line_overrides_both(write):
    content = 'recipe = "book"\nlr = 1\nbatch_size = 32\ncompile = true\ngroups = "auto"\n'
    write(f'{content}runs = "~/all"\nweights = "~/w.pt"\n')
    config, runtime = parse(["--config", "run.toml", "--no-compile", "--batch-size=16"], PROGRAM, "torch")
    assert (config.recipe, config.data, config.momentum) == ("book", "fashion-mnist", 0.0)
    assert (config.lr, config.batch_size, config.compile, config.groups) == (1.0, 16, False, "auto")
    assert type(config.lr) is float
    assert (runtime.runs, Path(config.weights)) == (Path.home() / "all", Path.home() / "w.pt")
    assert parse(["--config", "run.toml", "--recipe", "fashion"], PROGRAM, None)[0].momentum == 0.9


def test_options_of_a_resumed_run_are_below_those_of_the_file(write, tmp_path):
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    config, runtime = parse(["--lr", "0.3", "--epochs", "7"], PROGRAM, "mxnet")
    earlier = {name: value for name, value in record.to_record(config).items() if name != "score"}
    recorded = {"config": earlier, "runtime": {"score": "min:p", "keep": 1}}
    record.write_json(folder / "config.json", recorded)
    write('resume = "runs/old"\nlr = 0.4\n')
    line = CommandLine.read(["--config", "run.toml", "--seed", "1"], PROGRAM, None)
    config, runtime = line.options()
    assert (config.lr, config.epochs, config.seed, config.framework) == (0.4, 7, 1, "mxnet")
    assert runtime.resume == Path("runs/old").absolute()
    found = line.origins()
    assert (found["lr"], found["epochs"], found["seed"]) == ("file run.toml", "run runs/old", "command line")
    assert (found["resume"], found["keep"], found["score"]) == ("file run.toml", "default", "run runs/old")
    assert config.score == "min:p", "else the best checkpoint would be another one after the resume"
    config, _ = CommandLine.read(["--config", "run.toml", "--score", "auto"], PROGRAM, None).options()
    assert config.score == "auto"


INVALID = [
    ("momentum = 0\nnesterov = true", "--nesterov with --momentum 0.0: it requires momentum"),
    ('lr = "0.1"', 'lr = "0.1" is not valid; give a number'),
    ("lr = -1", "--lr -1.0: must be above 0"),
    ('groups = "x"', 'groups = "x" is not valid; give an integer or "auto"'),
    ('optimizer = "adm"', 'optimizer = "adm" is not valid (did you mean adam?); give one of "sgd", "adam", "adamw"'),
    ("bach-size = 3", "training has no option 'bach-size' (did you mean batch-size?)"),
    ("ranks = 2", "ranks is of a job, not of training; give it to train or launch as an option"),
    ('config = "b.toml"', "training has no option 'config'"),
    ("batch-size = 1\nbatch_size = 2", "batch-size is there twice, with - and with _"),
    ("lr = 0.1 # \x00", "is not TOML in UTF-8 (Found invalid character '\\x00'"),
    ("a = " + "[" * 2000, "is not TOML in UTF-8 ("),
    ("\nlr" + ".a" * 1001 + " = 1", "is not TOML in UTF-8 (line 2 has more than 1000 dots"),
    ('name = "a\\u0000"', "the value of name has a null character; remove it"),
    (b'name = "\xff"', "is not TOML in UTF-8"),
    ("#" * (1 << 15) + "#", "cannot be read (larger than 32 KiB)"),
    ('resume = "nowhere"', "--resume nowhere: no such folder"),
    ('framework = "mxnet"', "--framework mxnet: program trains in torch; use python -m hvdtrain.mxnet_lenet"),
]


@pytest.mark.parametrize(("content", "error"), INVALID, ids=range(len(INVALID)))
def test_invalid_file(write, content, error):
    write(content)
    text = str(refused(lambda: parse(["--config", "run.toml"], PROGRAM, "torch")))
    assert text.startswith(f"--config run.toml: {error}"), text


def printed(argv, framework=None):
    return CommandLine.read(argv, PROGRAM, framework).to_toml()


ODD = ["--name", 'a "b" \\ # \t\x7f é 😀', "--weight-decay", "1e-05", "--runs", "my runs", "--tracker", "tensorboard"]


@pytest.mark.needs()
@pytest.mark.parametrize("argv", [[], ["--recipe", "book"], ODD, ["--groups", "3", "--checkpoint-every", "1e9s"]])
@pytest.mark.parametrize("framework", [None, "mxnet"])
def test_printed_options_are_a_file_with_the_same_options(write, argv, framework):
    write(printed(argv, framework))
    assert parse(["--config", "run.toml"], PROGRAM, framework) == parse(argv, PROGRAM, framework)


@pytest.mark.parametrize("argv", [["--name", "a\udc80"], ["--freeze", "a", "--freeze", "\udc80"]])
def test_text_that_no_file_can_hold_is_not_printed(argv):
    refused(lambda: printed(argv), "is not UTF-8, as TOML is", option=argv[0][2:])


def test_printed_options_name_their_origin(write):
    write("lr = 0.25\nmomentum = 0.5\n")
    given = ["--config", "run.toml", "--recipe", "book", "--momentum", "0.75", "--no-compile", "--batch_size=8"]
    lines = [line.split() for line in printed(given, "torch").splitlines()]
    found = {" ".join(line[: line.index("#", 1)]): " ".join(line[line.index("#", 1) + 1 :]) for line in lines}
    assert found["lr = 0.25"] == "file run.toml"
    assert found["momentum = 0.75"] == found["compile = false"] == found["batch-size = 8"] == "command line"
    assert found["epochs = 10"] == "recipe book"
    assert found['framework = "torch"'] == "entry point"
    assert found["seed = 0"] == found["# resume ="] == "default"


@pytest.mark.parametrize("option", [[], ["--model"]])
def test_a_task_without_its_class_is_told_which_there_are(tmp_path, monkeypatch, option):
    """The file does not run for that."""
    monkeypatch.chdir(tmp_path)
    Path("mytask.py").write_text("raise SystemExit\nclass Task: ...\nclass Other: ...\nclass _Base: ...\n")
    with pytest.raises(UserError) as raised:
        config, _ = CommandLine.read([*option, "mytask.py", "--seed", "1"], PROGRAM, None).options()
        find_network(config.model)
    assert "mytask.py:Task or mytask.py:Other" in raised.value.remedy and "_Base" not in raised.value.remedy


def test_the_run_of_a_checkpoint_is_known_also_where_its_folder_was_copied_or_its_manifest_is_lost(tmp_path):
    for place, files in (("checkpoints/damaged", ()), ("saved/step-4", ("manifest.json",)), ("photos/a", ())):
        (tmp_path / place).mkdir(parents=True)
        for name in files:
            (tmp_path / place / name).touch()
    assert run_folder(tmp_path / "checkpoints/damaged") == run_folder(tmp_path / "saved/step-4") == tmp_path
    assert run_folder(tmp_path / "photos/a") == tmp_path / "photos/a", "which is no checkpoint"
