"""Commands work with the required packages alone, and those that need more name the extra that brings it.

The packages of extras cannot be imported in the processes that these tests start.
"""

import configparser
import json
import os
import subprocess
import sys

import pytest
from support.environment import of_jobs
from support.jobs import ROOT
from support.report import make_run
from support.stack import FASTEST

from hvdtrain.cli import COMMANDS

EXTRAS = {
    "plots": ["matplotlib"],
    "report": ["jinja2", "matplotlib"],
    "web": ["flask", "waitress"],
    "completion": ["shtab"],
    "tensorboard": ["tensorboardX"],
    "prometheus": ["prometheus_client"],
    "sweep": ["optuna"],
    "tables": ["pyarrow"],
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


def python(folder, *words: str) -> subprocess.CompletedProcess[str]:
    """What Python does in the folder without the packages of extras."""
    environment = of_jobs(PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def said(folder):
    """Exit status and output of each command."""
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


def test_extras_have_these_packages():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {name: lines.split() for name, lines in setup["options.extras_require"].items()}
    for name, packages in EXTRAS.items():
        assert [package.replace("-", "_") for package in extras[name]] == packages
    assert all(name in extras["all"][0] or name in extras["all"][1] for name in EXTRAS)
