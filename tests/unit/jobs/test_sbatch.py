"""Batch scripts for Slurm, compared with recorded ones, and what users add to them: --sbatch, --array and mail."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support.golden import GOLDEN, assert_recorded
from support.jobs import BIN, ROOT

from hvdtrain.cli import launch
from hvdtrain.errors import UserError
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
    "sbatch-survive": ["--nodes", "3", "--ranks-per-node", "2", "--survive", "--min-np", "4"],
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


def test_the_script_in_the_launch_folder_is_the_recorded_one():
    assert (ROOT / "launch" / "slurm.sbatch").read_text() == (GOLDEN / "sbatch.sbatch").read_text()


SBATCH = ["sbatch", "--nodes", "2", "--ranks-per-node", "1"]


def script(*options: str, program: tuple[str, ...] = ("true",)) -> str:
    return sbatch.script(launch.parse([*SBATCH, *options, "--", *program]))


AS_GIVEN = ("--qos=high", "-q high", "--exclusive", "-H", "--gpus=4", "--mem-per-cpu=2G", "--time-min=10")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        *((option, option) for option in AS_GIVEN),
        ("--qos high", "--qos=high"),
        ("-qhigh", "-q high"),
        ("--comment='a # \"b\" \\c'", '"--comment=a # \\"b\\" \\\\c"'),
        ("--constraint='[rack1|rack2]&a100'", "--constraint=[rack1|rack2]&a100"),
    ],
)
def test_other_options_become_lines_of_the_script(given, line):
    assert sbatch.extra([given]) == [line]
    assert f"\n#SBATCH {line}\n" in script("--sbatch", given)  # although it begins with a dash
    assert f"\n#SBATCH {line}\n" in script(f"--sbatch={given}")


OF_THE_LAUNCHER = {
    # sbatch accepts the beginning of a name.
    "give --nodes and --ranks-per-node": ("--nodes=3", "-N3", "-N 3", "--nod=3", "--ntasks-per-node 4"),
    "give --job-name": ("-J name", "--job=name"),
    "give --time": ("-t5", "--time=5"),
    "launch status knows the log file": ("-o x.log",),
    "give --signal-before": ("--signal=USR2@5",),
    "--no-requeue turns it off": ("--requeue",),
    "appends to its log file": ("--open-mode=truncate",),
    "give --array": ("--array=0-3",),
    "give --mail-user": ("--mail-user=ada",),
    "give --env NAME": ("--export=NONE",),
    "start the launcher in that folder": ("-D /tmp",),
    "write the program after --": ("--wrap=ls",),
    "it is an option of the command sbatch": ("--parsable", "--wait"),
}


@pytest.mark.parametrize(("given", "remedy"), [(one, remedy) for remedy, all in OF_THE_LAUNCHER.items() for one in all])
def test_options_of_the_launcher_itself_are_named(given, remedy):
    with pytest.raises(UserError) as raised:
        script("--sbatch", given)
    assert given in raised.value.reason and "the launcher decides --" in raised.value.reason
    assert remedy in raised.value.remedy


@pytest.mark.parametrize(
    "given",
    ["", "qos=high", "hetjob", "--", "-", "--qos=a b c", "--qos=a\nb", "--qos='a", "-HN4", "-H 3", "-q", "--a b=c d"],
)
def test_what_is_not_one_option_is_an_error(given):
    with pytest.raises(UserError, match=r"--sbatch .*write"):
        sbatch.extra([given])


@pytest.mark.parametrize(
    ("text", "last", "has", "lacks"),
    [("0-9", 9, 3, 10), ("0-9%2", 9, 9, 10), ("1,3,5", 5, 3, 2), ("0-8:4", 8, 4, 2), ("7", 7, 7, 0)],
)
def test_tasks_of_an_array(text, last, has, lacks):
    tasks = sbatch.array_tasks(text)
    assert (tasks.last, tasks.has(has), tasks.has(lacks)) == (last, True, False)
    assert f"#SBATCH --array={text}\n" in script("--array", text)


@pytest.mark.parametrize("text", ["x", "3-1", "0-9%0", "0-9%", "0-", "1,,2", "0-9:0", "0-4000001", "0-9\n", "-1", "٣"])
def test_what_is_no_array_is_an_error(text):
    with pytest.raises(UserError, match=r"--array .*; write 0-9, "):
        script(f"--array={text}")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--mail-user", "ada"), "#SBATCH --mail-user=ada --mail-type=END,FAIL\n"),
        (("--mail-type", "begin,time_limit_80"), "#SBATCH --mail-type=BEGIN,TIME_LIMIT_80\n"),
        (("--mail-type", "sometimes"), UserError("'SOMETIMES' is not an event; give NONE, BEGIN")),
        (("--mail-user", "a b"), UserError("--mail-user 'a b' is invalid")),
        *((("--job-name", name), f"#SBATCH --job-name={name}\n") for name in ("a%jb", ".x", "x" * 200, "a:b@c=+,-")),
        *((("--job-name", name), UserError("--job-name")) for name in ("team/run", "../up", "/run", "x" * 240)),
    ],
)
def test_mail_and_names(options, expected):
    """No log file can have some of the names."""
    if isinstance(expected, str):
        assert expected in script(*options)
    else:
        with pytest.raises(UserError, match=re.escape(str(expected))):
            script(*options)


@pytest.mark.parametrize(
    ("folder", "submitted"),
    [("a%xb", False), ("%3j", False), ("100%%", False), ("a\\b", False), ("50% of", True), ("100%", True)],
)
def test_a_job_is_submitted_only_where_slurm_can_write_its_log(tmp_path, monkeypatch, folder, submitted):
    """What a real Slurm 22.05 does in folders of these names."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    options = launch.parse([*SBATCH, "--submit", "--", "true"])
    if submitted:
        assert launch.batch(options) == 0
    else:
        with pytest.raises(UserError, match="the path of the log file"):
            launch.batch(options)
    assert (tmp_path / "hvdtrain").exists() == submitted


@pytest.mark.parametrize(
    ("options", "program", "message"),
    [
        (["--array", "0-1"], (*TRAINING, "--name", "a"), "--array with --name: all tasks would train the same run"),
        ([], (*SWEEP, "bench"), "-- sweep: it has no command to run"),
        (["--restarts", "2"], (*SWEEP, "launch", "local", "--", *TRAINING), "the sweep's own command starts the ranks"),
        (["--via", "mpirun"], ("train", *["y" * 1023] * 140), "launch mpirun: .* KiB"),
        (["--ssh-port", "1"], TRAINING, "--ssh-port and --ssh-key are for horovodrun only; omit them with --via srun"),
    ],
)
def test_programs_that_no_script_can_start(options, program, message):
    with pytest.raises(UserError, match=message):
        script(*options, program=program)


def test_an_array_with_tasks_that_have_no_trial_is_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main([*SBATCH, "--array", "0-4", "--", *SWEEP, "train"])
    assert ended.value.code == 2
    expected = "hvdtrain: --array 0-4: task 4 has no trial, as the sweep has 4 trials, 0 to 3; give --array 0-3\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(SystemExit) as ended:  # before the job waits for hours
        launch.main([*SBATCH, "--", "hvdtrain", "sweep", "--set", "rl=1", "--", "train"])
    assert (ended.value.code, "training has no option 'rl'" in capsys.readouterr().err) == (2, True)
