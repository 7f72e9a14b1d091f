"""Batch scripts for Slurm, compared with recorded ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.golden import GOLDEN, ODD_ARGUMENTS, assert_recorded
from support.jobs import BIN, ROOT

from hvdtrain.cli import launch
from hvdtrain.jobs.slurm import sbatch

BATCHES = {
    "sbatch": ["--nodes", "2", "--ranks-per-node", "4"],
    "sbatch-all": [
        *("--nodes", "2", "--ranks-per-node", "4", "--gpus-per-node", "a100:4", "--cpus-per-rank", "8", "--mem", "64G"),
        *("--partition", "gpu", "--account", "physics", "--time", "1-02:00:00", "--mpi", "pmix", "--interface", "ib0"),
        *("--container", "/images/hvd train.sif", "--env", "NCCL_DEBUG=a b", "--autotune"),
        *("--output-dir", "logs of it"),
    ],
    "sbatch-mpirun": ["--nodes", "2", "--ranks-per-node", "2", "--via", "mpirun", "--no-requeue"],
    "sbatch-on-end": ["--nodes", "1", "--ranks-per-node", "2", "--on-end", "./notify.sh 'a job'"],
    "sbatch-horovodrun": ["--nodes", "2", "--ranks-per-node", "2", "--via", "horovodrun", "--ssh-port", "2222"],
    "sbatch-array": [
        *("--nodes", "1", "--ranks-per-node", "2", "--array", "0-9%2", "--mail-user", "ada@example.org"),
        *("--sbatch", "--qos=high", "--sbatch", "--constraint a100&nvlink", "--sbatch", "-x 'node[1-2]'"),
        *("--sbatch", "--comment='50 % # \"done\"'", "--sbatch=--exclusive"),
    ],
    "sbatch-sweep": ["--nodes", "2", "--ranks-per-node", "1", "--array", "0-3", "--mail-type", "all"],
    "sbatch-sweep-own-launcher": ["--nodes", "1", "--ranks-per-node", "2", "--no-requeue"],
}
TRAINING = ["python", "-m", "hvdtrain.torch_lenet", "--epochs", "3"]
SWEEP = ["hvdtrain", "sweep", "--set", "lr=0.1,0.2", "--seeds", "2", "--output", "all of it", "--"]
PROGRAMS = {
    "sbatch-sweep": [*SWEEP, "hvdtrain", "train", "--framework", "torch", "--data", "my data"],
    "sbatch-sweep-own-launcher": [*SWEEP, "launch", "local", "-n", "2", "--", *TRAINING],
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_scripts_equal_the_recorded_ones_and_pass_shellcheck(name, monkeypatch):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    options = launch.parse(["sbatch", *BATCHES[name], "--", *PROGRAMS.get(name, TRAINING)])
    text = sbatch.script(options)
    assert_recorded(f"{name}.sbatch", text)
    checked = subprocess.run([BIN / "shellcheck", "-s", "bash", "-"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_odd_arguments_reach_the_program_of_a_batch_script(tmp_path):
    """bash runs the script's lines as Slurm would, with a program that prints its arguments."""
    show = [sys.executable, "-c", "import sys; print(sys.argv[1:])", *ODD_ARGUMENTS]
    options = launch.parse(["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--", *show])
    text = sbatch.script(options)
    line = next(line for line in text.splitlines() if line.startswith("program=("))
    end = text.index("\n\n# hvdtrain's launcher")
    code = text[text.index(line) : end] + '\n"${program[@]}"\n'
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{ODD_ARGUMENTS}\n"


def test_the_script_in_the_launch_folder_is_the_recorded_one():
    assert (ROOT / "launch" / "slurm.sbatch").read_text() == (GOLDEN / "sbatch.sbatch").read_text()
