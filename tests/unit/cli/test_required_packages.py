"""Commands work with the required packages alone, and those that need more name the extra that brings it.

The packages of extras cannot be imported in the processes that these tests start. Where a required one is missing or
broken, or Python is too old, each command says so in one line, and the doctor works.
"""

import configparser
import json
import os
import subprocess
import sys
import venv

import pytest
from support.environment import of_jobs
from support.jobs import ROOT
from support.report import make_run
from support.stack import FASTEST

from hvdtrain.cli import COMMANDS
from hvdtrain.system.stacks import REQUIRED

EXTRAS = {
    "plots": ["matplotlib"],
    "report": ["jinja2"],
    "web": ["flask", "waitress"],
    "completion": ["shtab"],
    "tensorboard": ["tensorboardX"],
    "sweep": ["optuna"],
    "tables": ["pyarrow"],
    "heif": ["pillow_heif"],
    "onnx": ["onnx", "onnxruntime"],
}
"""What the packages of each extra are imported as."""
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({[name for names in EXTRAS.values() for name in names]}))"
PROGRAM = """
import json, os, sys, tempfile
from hvdtrain.__main__ import main
said = {}
for command in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as output:
        if not (child := os.fork()):
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            main(command.split())
            sys.exit()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        said[command] = [status, output.read().decode()]
print(json.dumps(said))
"""
WORK = [
    "runs",
    "runs --json",
    "show run",
    "watch run",
    "diff run other",
    "report runs",
    "doctor --only python numpy folder",
    "launch local -n 1 --dry-run -- python -m hvdtrain.torch_lenet",
    "launch sbatch --nodes 1 --ranks-per-node 1 -- python -m hvdtrain.torch_lenet",
    *(f"{command} --help" for command in COMMANDS),
    "launch local --help",
]
REFUSED = {
    "watch --serve 127.0.0.1:0": "watch --serve needs flask; pip install 'hvdtrain[web]'",
    "completion bash": "completion needs shtab; pip install 'hvdtrain[completion]'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("alone")
    (made / "sitecustomize.py").write_text(BLOCKED)
    for name, lr in (("run", 0.1), ("other", 0.2)):
        make_run(made / "runs" / name, lr=lr)
    return made


def python(folder, *words: str, executable: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """What Python does in the folder without the packages of extras."""
    environment = of_jobs(PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    command = [executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def said(folder):
    done = python(folder, "-c", PROGRAM, json.dumps([*WORK, *REFUSED]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", WORK)
def test_commands_work_with_the_required_packages(said, command):
    status, output = said[command]
    assert status == 0 and "Traceback" not in output, output


def test_a_report_without_its_page_says_so(said, folder):
    status, output = said["report runs"]
    assert status == 0 and {path.name for path in (folder / "report").iterdir()} == {"report.md", "report.csv"}
    assert "\nreport.html needs jinja2; pip install 'hvdtrain[report]'\n" in output


def test_training_says_that_its_plot_is_missing(folder):
    options = ["--strategy", "single", "--data", "digits", "--epochs", "1", "--name", "new"]
    done = python(folder, "-m", f"hvdtrain.{FASTEST}_lenet", *options)
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (folder / "runs" / "new").iterdir()}
    assert {"result.json", "metrics.jsonl"} <= written and "metrics.png" not in written
    log = (folder / "runs" / "new" / "logs" / "rank-0.log").read_text()
    assert "no metrics.png: " in log and "pip install 'hvdtrain[plots]'" in log


@pytest.mark.parametrize(("command", "reason"), REFUSED.items())
def test_what_is_missing_is_one_line(said, command, reason):
    status, output = said[command]
    assert status == 2 and output.endswith(f"{reason}\n") and output.count("\n") == 1


def test_extras_and_requirements_are_those_of_the_package():
    setup = configparser.ConfigParser(comment_prefixes="#")
    setup.read(ROOT / "setup.cfg")
    extras = {name: lines.split() for name, lines in setup["options.extras_require"].items()}
    for name, packages in EXTRAS.items():
        assert [package.replace("-", "_") for package in extras[name]] == packages
    assert all(name in extras["all"][0] or name in extras["all"][1] for name in EXTRAS)
    listed = [line.split(";")[0].split(">")[0] for line in setup["options"]["install_requires"].split("\n") if line]
    assert {*REQUIRED} - {"PIL"} == {*listed} - {"pillow", "tomli"}


SCRIPT = "import hvdtrain\nwith hvdtrain.start() as run:\n    pass\n"
BROKEN = {
    "missing": (None, "No module named '{}"),
    "error": ("raise RuntimeError('advice\\nbuilt for another')", "built for another"),
    "library": ("raise ImportError('libx.so: cannot open')", "libx.so: cannot open"),
    "part": ("import {}.part", "No module named '{}.part'"),
    "needs": ("import other_package", "No module named 'other_package'"),
}
"""What is in a package's __init__.py, and what is said of it."""
ENTRIES = {
    "command": ["-m", "hvdtrain", "train", "--help"],
    "lenet": ["-m", "hvdtrain.torch_lenet", "--strategy", "single"],
    "script": ["script.py"],
    "launch": f"-m hvdtrain launch local -n 1 -- {sys.executable} -S -m hvdtrain.mxnet_lenet".split(),
    "show": ["-m", "hvdtrain", "show"],
}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """What a Python says that has no packages, except those in the folder."""
    made = tmp_path_factory.mktemp("bare")
    venv.create(made, symlinks=True)

    def run(folder, *words: str) -> subprocess.CompletedProcess[str]:
        (folder / "script.py").write_text(SCRIPT)
        return python(folder, *words, executable=str(made / "bin" / "python"))

    return run


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = done.stderr.splitlines()
    assert done.returncode and not done.stdout and line.startswith("hvdtrain: "), done
    return line


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_entry_point_names_a_missing_package_and_a_command(bare_python, tmp_path, entry):
    line = one_line(bare_python(tmp_path, *ENTRIES[entry]))
    assert any(f": {name} cannot be used (No module named " in line for name in REQUIRED), line
    assert "make setup STACK=" in line or "/bin/activate" in line


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("package", ["msgspec", "numpy"])
def test_a_broken_package_is_one_line(bare_python, tmp_path, package, kind):
    content, said = BROKEN[kind]
    for name, text in {"msgspec": "", package: content}.items():
        if text is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(text.replace("{}", name))
    program = "from hvdtrain.system.command import *\nwith exit_status():\n    import hvdtrain.collectives.encoding"
    line = one_line(bare_python(tmp_path, *{"msgspec": ENTRIES["lenet"], "numpy": ["-c", program]}[package]))
    assert f"{package} cannot be used (" in line and said.replace("{}", package) in line


def test_the_doctor_works_without_packages(bare_python, tmp_path):
    done = bare_python(tmp_path, "-m", "hvdtrain", "doctor")
    assert done.returncode == 1 and done.stderr == "", done
    said = "  fail packages: numpy cannot be used (exit status 1: ModuleNotFoundError: No module named 'numpy')\n"
    assert f"{said}       -> make setup STACK=" in done.stdout
    assert "crashed" not in done.stdout and "ok   folder: " in done.stdout


@pytest.mark.parametrize("entry", ["command", "lenet", "script"])
def test_an_old_python_is_one_line(bare_python, tmp_path, entry):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 8, 1)")
    line = one_line(bare_python(tmp_path, *ENTRIES[entry]))
    assert line.startswith("hvdtrain: needs Python 3.10 or later; make setup")
