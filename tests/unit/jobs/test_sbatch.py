"""Batch scripts for Slurm, compared with recorded ones, and what users add to them: --sbatch and --array."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import GOLDEN, assert_recorded
from support.jobs import BIN, ROOT

from hvdtrain.cli import launch
from hvdtrain.errors import UserError
from hvdtrain.jobs import sbatch

BATCHES = {
    "sbatch": ["--nodes", "2", "--ranks-per-node", "4"],
    "sbatch-all": [
        *("--nodes", "2", "--ranks-per-node", "4", "--gpus-per-node", "a100:4"),
        *("--partition", "gpu", "--account", "physics", "--time", "1-02:00:00", "--mpi", "pmix", "--interface", "ib0"),
        *("--container", "/images/hvd train.sif", "--env", "NCCL_DEBUG=a b"),
        *("--output-dir", "logs of it"),
    ],
    "sbatch-mpirun": ["--nodes", "2", "--ranks-per-node", "2", "--via", "mpirun", "--no-requeue"],
    "sbatch-survive": ["--nodes", "3", "--ranks-per-node", "2", "--survive", "--min-np", "4"],
    "sbatch-on-end": ["--nodes", "1", "--ranks-per-node", "2", "--on-end", "./notify.sh 'a job'"],
    "sbatch-horovodrun": ["--nodes", "2", "--ranks-per-node", "2", "--via", "horovodrun"],
    "sbatch-array": [
        *("--nodes", "1", "--ranks-per-node", "2", "--array", "0-9%2", "--output-dir", "logs"),
        *("--sbatch", "--qos=high", "--sbatch", "--constraint a100&nvlink", "--sbatch", "-x 'node[1-2]'"),
        *("--sbatch", "--comment='50 % # \"done\"'", "--sbatch=--exclusive"),
    ],
    "sbatch-sweep": ["--nodes", "2", "--ranks-per-node", "1", "--array", "0-3"],
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


@pytest.mark.parametrize(
    "given", ["--qos=high", "-q high", "-H", "--cpus-per-task=8", "--mail-type=END", "--comment='a # \"b\"'"]
)
def test_other_options_become_lines_of_the_script(given):
    assert f"\n#SBATCH {given}\n" in script("--sbatch", given)  # although it begins with a dash
    assert f"\n#SBATCH {given}\n" in script(f"--sbatch={given}")


@pytest.mark.parametrize("line", ["--comment='a", "--comment=\"it's", "--comment=it's", "--comment=a\\"])
def test_an_open_quotation_is_an_error(line):
    with pytest.raises(UserError, match=r"--sbatch .*: a quotation mark is missing; "):
        script("--sbatch", line)


@pytest.mark.parametrize(("text", "last"), [("0-9", 9), ("0-9%2", 9), ("1,3,5", 5), ("0-8:4", 8), ("7", 7)])
def test_tasks_of_an_array(text, last):
    assert sbatch.last_task(text) == last
    assert f"#SBATCH --array={text}\n" in script("--array", text)


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Puts a program in the place of sbatch; returns what it was given in its command line."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" >given\ncat >script\necho 77\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return lambda: (tmp_path / "given").read_text().split("\0")[:-1]


@pytest.mark.parametrize("name", BATCHES)
def test_options_of_a_submitted_script_are_also_in_the_command_line_of_sbatch(name, submitted):
    """There they come before SBATCH_TIMELIMIT and other variables of the shell, which come before those of a script."""
    options = launch.parse(["sbatch", *BATCHES[name], "--submit", "--", *PROGRAMS.get(name, TRAINING)])
    assert launch.batch(options) == 0
    lines = re.findall("^#SBATCH (.*)", Path("script").read_text(), re.MULTILINE)
    assert submitted() == ["--parsable", *(word for line in lines for word in shlex.split(line))]
    assert submitted()[1:4] == ["--job-name=hvdtrain", *lines[1].split()]


VARIABLES = """
ACCOUNT ACCTG_FREQ ARRAY_INX BATCH CLUSTERS CONSTRAINT CONTAINER CORE_SPEC CPUS_PER_GPU DEBUG DELAY_BOOT
DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPU_BIND GPU_FREQ GPUS GPUS_PER_NODE GPUS_PER_TASK GRES
GRES_FLAGS HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL
NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS REQ_SWITCH REQUEUE RESERVATION SIGNAL
SPREAD_JOB THREAD_SPEC THREADS_PER_CORE TIMELIMIT USE_MIN_NODES WAIT WAIT_ALL_NODES WAIT4SWITCH WCKEY
"""
"""The variables of which sbatch's manual page says that it takes options from them, all beginning with SBATCH_."""
OF_SBATCH = [*(f"SBATCH_{name}" for name in VARIABLES.split()), "SLURM_CLUSTERS", "SLURM_HINT"]


@pytest.mark.parametrize("submits", [False, True])
def test_variables_from_which_sbatch_takes_options_are_named(submits, submitted, monkeypatch, capsys):
    for name in (*OF_SBATCH, "SLURM_CONF", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "a secret")
    launch.batch(launch.parse([*SBATCH, *(["--submit"] if submits else []), "--", "true"]))
    printed = capsys.readouterr()
    first = printed.err.splitlines()[0]
    order = "they override those of a printed script, but not those that --submit passes"
    assert first == f"hvdtrain: sbatch also takes options from {', '.join(sorted(OF_SBATCH))}: {order}"
    assert "a secret" not in printed.err + printed.out
    assert submits or "# Start it with sbatch, in a shell without variables SBATCH_*" in printed.out
    for name in OF_SBATCH:
        monkeypatch.delenv(name)
    launch.batch(launch.parse([*SBATCH, "--", "true"]))
    assert not capsys.readouterr().err


def test_commands_of_a_script_take_no_options_from_variables():
    """squeue would not find the job by SQUEUE_STATES, and scancel would ask by SCANCEL_INTERACTIVE."""
    (line,) = re.findall("^unset .*", script(), re.MULTILINE)
    names = ("SLURM_CLUSTERS", "SQUEUE_STATES", "SQUEUE_USERS", "SCANCEL_INTERACTIVE", "SLURM_JOB_ID")
    given = {"PATH": os.environ["PATH"], **dict.fromkeys(names, "1")}
    done = subprocess.run(["bash", "-uc", f"{line}; env"], env=given, capture_output=True, text=True, check=True)
    assert [name for name in names if f"{name}=1" in done.stdout.splitlines()] == ["SLURM_JOB_ID"]
    subprocess.run(["bash", "-uc", line], env={"PATH": os.environ["PATH"]}, check=True)  # none is set


@pytest.mark.parametrize("via", sbatch.VIAS)
@pytest.mark.parametrize("program", [("true",), tuple(SWEEP + ["train"])])
@pytest.mark.parametrize(("array", "folder"), [("", "'the logs'"), ("0-3", "'the logs'/4")])
def test_each_task_of_an_array_writes_to_a_folder_of_its_own(via, program, array, folder):
    """Also those that are started at the same time."""
    options = ["--via", via, "--output-dir", "the logs", "--env", "A", *(["--array", array] if array else [])]
    text = script(*options, program=program)
    assert text.replace('"$SLURM_ARRAY_TASK_ID"', "4").count(f" --output-dir {folder} -- ") == 1


KNOWN = r"the launcher has to know -.*; launch sbatch --help lists its own options"
NO_OPTION = r"--sbatch .* is (not an|more than one) option of sbatch; "
OPEN = ("--comment='a", "--comment=\"it's", "--comment=it's", "--comment=a\\")
NO_OPTIONS = ("", "qos=high", "hetjob", "--qos=a\nb", "--qos=a\x85b", "--qos=a --array=0-9")
NO_ARRAY = ("x", "3-1", "0-9%0", "0-9%", "0-", "1,,2", "0-9:0", "0-4000001", "0-9\n", "-1", "٣")
REFUSED = [
    *(("--sbatch", line, KNOWN) for line in ("--nodes=3", "-N3", "-n 3", "--ntasks 4", "--arr=0-3", "--signal=USR2@5")),
    *(("--sbatch", line, KNOWN) for line in ("--time=1", "--tim 1", "-t1")),
    *(("--sbatch", line, NO_OPTION) for line in NO_OPTIONS),
    *(("--array", tasks, r"--array .*; write 0-9, ") for tasks in NO_ARRAY),
    *(("--job-name", name, "--job-name") for name in ("team/run", "../up", "/run", "x" * 240, "a b")),
]
"""Options, values and the error: no log file can have these names."""


@pytest.mark.parametrize(("option", "given", "message"), REFUSED)
def test_what_no_script_can_have(option, given, message):
    with pytest.raises(UserError, match=message):
        script(f"{option}={given}")


TIMES = [
    *(("1", 60), ("90", 5400), ("1:30", 120), ("0:30", 60), ("1:00:00", 3600), ("0:2:01", 180), ("10:00:00", 36000)),
    *(("1-0", 86400), ("0-1", 3600), ("0-0:5", 300), ("2-1:2:3", 176580), ("0-0:0:59", 60)),
]
"""In each of sbatch's forms, and their seconds in whole minutes, as Slurm takes them."""


@pytest.mark.parametrize(("time", "seconds"), TIMES)
def test_a_job_begins_before_it_is_asked_to_stop(time, seconds):
    """Else it would be queued again for ever."""
    assert f"\n#SBATCH --time={time}\n" in script("--time", time, "--signal-before", str(seconds - 1))
    for before in (seconds, seconds + 1):
        with pytest.raises(
            UserError, match=f"^--time {time} is {seconds} s, and --signal-before {before} s: .*--time$"
        ):
            script("--time", time, "--signal-before", str(before))


@pytest.mark.parametrize("time", ["0", "0:0", "0-0", "00:00:00"])
def test_a_job_without_a_time_limit_is_never_asked_to_stop(time):
    assert f"\n#SBATCH --time={time}\n" in script("--time", time)


@pytest.mark.parametrize("name", ["a%jb", ".x", "x" * 200, "a:b@c=+,-"])
def test_names(name):
    assert f"#SBATCH --job-name={name}\n" in script("--job-name", name)


@pytest.mark.parametrize(
    ("folder", "submitted"),
    [("a%xb", False), ("%3j", False), ("100%%", False), ("a\\b", False), ("50% of", True), ("100%", True)],
)
def test_a_job_is_submitted_only_where_slurm_can_write_its_log(tmp_path, monkeypatch, capsys, folder, submitted):
    """What a real Slurm 22.05 does in folders of these names."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\ncat >/dev/null\necho a line of a plug-in\necho '77;far'\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = launch.parse([*SBATCH, "--submit", "--", "true"])
    if submitted:
        assert launch.batch(options) == 0
        printed = capsys.readouterr()
        assert printed.out == "Submitted batch job 77 on cluster far\n"
        for command in ("squeue --clusters=far --jobs=77", "scancel --clusters=far --batch --signal=TERM 77"):
            assert f"{command} " in printed.err
    else:
        with pytest.raises(UserError, match="the path of the log file"):
            launch.batch(options)


def test_options_of_a_launcher_that_the_sweep_starts_itself_are_an_error():
    with pytest.raises(UserError, match="the sweep's own command starts the ranks"):
        script("--restarts", "2", program=(*SWEEP, "launch", "local", "--", *TRAINING))


def test_an_array_with_tasks_that_have_no_trial_is_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main([*SBATCH, "--array", "0-4", "--", *SWEEP, "train"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdtrain: SLURM_ARRAY_TASK_ID=4: the sweep has 4 trials, 0 to 3; give one of them;")
    with pytest.raises(SystemExit) as ended:  # before the job waits for hours
        launch.main([*SBATCH, "--", "hvdtrain", "sweep", "--set", "rl=1", "--", "train"])
    assert (ended.value.code, "training has no option 'rl'" in capsys.readouterr().err) == (2, True)


MISTAKES = [
    ("hvdtrain train --lrr 1", "--lrr is not an option (did you mean --lr?)"),
    ("env A=1 python -m hvdtrain train --lrr=1 --resume auto", "--lrr is not an option"),
    ("python -m hvdtrain.torch_lenet --lr x", "--lr x is not valid"),
    ("hvdtrain train --nesterov --momentum 0", "it requires momentum"),
    ("hvdtrain train --name x --array 0-3", "all tasks of --array would train this run"),
    ("hvdtrain sweep --set lr=1 -- train --epochz 3", "--epochz is not an option"),
    ("hvdtrain sweep --set lr=1 -- launch local -n 2 -- hvdtrain train --epochz 3", "--epochz is not an option"),
    ("hvdtrain sweep --set lr=1 -- train --seed 3", "a sweep sets that itself"),
    ("hvdtrain sweep --set momentum=0.9,0 -- train --nesterov", "the trials with momentum 0.0: --nesterov"),
    ("hvdtrain sweep --set lr=1 -- bench", "a sweep runs train or launch"),
]
SOUND = (
    "hvdtrain train --resume auto",
    "hvdtrain train --resume runs/of-a-job-before",
    "./run.sh --lrr 1",
    "python script.py --lrr 1",
    "hvdtrain sweep --set arg.widths=[1,2],[3] -- train task.py:Task",
)


@pytest.mark.parametrize(("program", "error"), [*MISTAKES, *((program, "") for program in SOUND)])
def test_options_that_training_refuses_are_found_before_the_job_waits(monkeypatch, capsys, program, error):
    """The name that a job gives to its run is not known here."""
    monkeypatch.delenv("HVDTRAIN_RUN_NAME", raising=False)
    program, of_array, tasks = program.partition("--array ")
    with pytest.raises(SystemExit) as ended:
        launch.main([*SBATCH, *([of_array.strip(), tasks] if tasks else []), "--", *program.split()])
    printed = capsys.readouterr()
    assert (ended.value.code, error in printed.err, bool(printed.out)) == (2 * bool(error), True, not error)
