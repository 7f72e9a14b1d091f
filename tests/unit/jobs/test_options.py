"""Options of the launcher and its hostfile: what they mean, and how invalid ones are reported."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from support.jobs import ROOT

from hvdtrain.__main__ import main
from hvdtrain.cli import launch, launch_options, train
from hvdtrain.config.sources import CommandLine
from hvdtrain.errors import UserError
from hvdtrain.jobs import gloo, hosts, job
from hvdtrain.jobs.hosts import Host
from hvdtrain.system import rank_info
from hvdtrain.training.process import Ending

SBATCH = "sbatch --nodes 1 --ranks-per-node 1"
TRAIN = "python -m hvdtrain train"


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("-n 2 --lr 0.1", "local -n 2 -- train --lr 0.1"),
        ("my.py:Task --lr 0.1 -n2", "local -n2 -- train my.py:Task --lr 0.1"),
        ("--ranks=2 --restarts 3 --survive --shards 8", "local --ranks=2 --restarts 3 --survive -- train --shards 8"),
        ("-n 2 -H a:1,b:1 --seed 1", "horovodrun -n 2 -H a:1,b:1 -- train --seed 1"),
        ("-np 2 --hostfile f --output_dir logs", "horovodrun -np 2 --hostfile f --output-dir logs -- train"),
        ("--on-end true -n 2 --env A=1", "local -n 2 --env A=1 -- train --on-end true"),
        ("--lr 0.1", ""),
    ],
)
def test_training_with_options_of_launch_is_launched(short, long):
    assert launch_options.of_training(shlex.split(short), ["train"]) == shlex.split(long)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("launch local -n 0 -- true", "-n 0 is invalid; give 1 or more"),
        ("launch local -n 2", "no program to start"),
        ("launch mpirun -n 5 -H a:2,b:2 -- true", "5 ranks, but 4 slot(s) (a:2, b:2); name more slots"),
        ("launch mpirun -n 2 -H a:2,a:1 -- true", "host a is named more than once; name it once"),
        ("launch mpirun -n 2 -H a:x -- true", "'a:x' is not a host"),
        ("launch mpirun -n 2 --hosts=-oProxyCommand=x -- true", "is not a host"),
        ("launch mpirun -n 2 -H a --hostfile f -- true", "--hostfile f: --hosts names them already"),
        ("launch mpirun -n 2 --hostfile /no/such -- true", "--hostfile /no/such cannot be read"),
        ("launch mpirun -n 2 --restarts -1 -- true", "--restarts: -1 is invalid; give 0 or more"),
        ("launch mpirun -n 2 --min-np 1 -- true", "--min-np 1: it has no effect without --restarts or --survive; gi"),
        ("launch mpirun -n 2 --max-np 4 -- true", "--max-np 4: a job grows only with --survive; give --survive as w"),
        ("launch horovodrun -n 2 --survive --max-np 1 -- true", "--max-np 1: the job begins with 2 ranks; give 2 or m"),
        ("launch mpirun -n 2 --min-np 5 --restarts 1 -- true", "--min-np 5: the job has 2 ranks; give 1 to 2"),
        ("launch srun -n 2 --survive -- true", "--survive: it starts a step for each rank, which needs an allocation"),
        ("launch local -n 1 --env 'A B' -- true", "is not the name of a variable"),
        ("launch local -n 1 --env NOT_SET_HERE -- true", "the variable is not set on this host"),
        ("launch local -n 1 --interface none0 -- true", "no such interface is up on this host"),
        (f"launch {SBATCH} --time x -- true", "--time 'x'"),
        (f"launch {SBATCH} --account 'a b' -- true", "give one word"),
        (f"launch {SBATCH} --via mpirun --mpi x -- true", "for srun only"),
        (
            f"launch {SBATCH} --on-end 'curl https://me:word@host' -- true",
            "--on-end: the command holds credentials, which the script would show; let the command read them",
        ),
        ("train --restarts 2", "the following arguments are required: -n/-np/--ranks"),
        ("train -n 2 --restart 2", "--restart is not an option (did you mean --restarts?)"),
        ("train -n 2 --lr x", "--lr x is not valid; give a number"),
        ("train -n 0", "-n 0 is invalid; give 1 or more"),
        ("launch local -n 2 -- hvdtrain train -n 2", "-- ... train -n: launch starts the ranks; give its options bef"),
        (f"launch {SBATCH} -- {TRAIN} --hosts a", "-- ... train --hosts: launch starts the ranks"),
        (f"launch {SBATCH} -- hvdtrain sweep --set lr=1 -- train -n 2", "-- ... train -n: launch starts the ranks"),
    ],
)
def test_invalid_options_are_explained_and_start_no_rank(words, sentence, capfd, monkeypatch):
    monkeypatch.setattr("hvdtrain.training.process.end", lambda *_: pytest.fail("it trains"))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    printed = capfd.readouterr().err
    assert (ended.value.code, sentence in printed, printed.count("\n")) == (2, True, 1), printed


def test_training_that_starts_its_ranks_is_the_job_that_launch_starts(capfd):
    of_job, printed = ["-n", "2", "--env", "A=1", "--dry-run"], []
    launched = ["launch", "local", *of_job, "--", sys.executable, *TRAIN.split()[1:], "--lr", "0.1"]
    for words in (["train", "--lr", "0.1", *of_job], launched):
        with pytest.raises(SystemExit) as ended:
            main(words)
        printed.append((ended.value.code, capfd.readouterr().out))
    assert printed[0] == printed[1] and printed[0][0] == 0 and "HVDTRAIN_SIZE=2" in printed[0][1]


def test_a_script_says_how_its_ranks_are_started():
    with pytest.raises(
        UserError, match=r"-n: a script .* starts no ranks; start them by hvdtrain launch local -n N -- python a\.py"
    ):
        CommandLine.read(["--lr", "0.1", "-n", "2"], "a.py", None)


@pytest.mark.parametrize(
    ("launcher", "names"), [("launch local", rank_info.VARIABLES["launch"]), ("srun", rank_info.VARIABLES["srun"])]
)
def test_a_rank_starts_no_ranks(launcher, names, monkeypatch):
    for name, value in zip(names, "120", strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"-n: this process already is rank 1 of 2 \({names[0]}\); leave it out, or"):
        train._train(Ending(), None, train.PROGRAM, ["-n", "2", "a.py:Task"])
    assert not train.starts_ranks(["-n", "2"])


def test_the_only_task_of_a_shell_in_slurm_starts_ranks(monkeypatch):
    """As srun --pty bash does, the usual way to a node."""
    for name, value in zip(rank_info.VARIABLES["srun"], "010", strict=True):
        monkeypatch.setenv(name, value)
    assert train.starts_ranks(["-n", "2"])


def test_ranks_are_placed_on_the_hosts_of_a_file_as_mpirun_places_them(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode1 slots=4\n\nnode2   slots = 2 # old\nnode3\n")
    assert hosts.read_hostfile(path) == (Host("node1", 4), Host("node2", 2), Host("node3", 1))
    path.write_text("node1 slots=4\nnode2 cores=3\n")
    with pytest.raises(UserError, match="line 2 is 'node2 cores=3'; write lines of the form: name slots=N"):
        hosts.read_hostfile(path)
    assert hosts.placed(3, (Host("a", 2), Host("b", 2))) == [Host("a", 2), Host("b", 1)]
    described = job.Job(("x",), 3, (Host("a", 2), Host("b", 2)), cores=4)
    assert (described.ranks_per_host, described.threads, described.crowded) == (2, 2, False)
    assert job.Job(("x",), 8, nodes=2, cores=2).crowded


FOUR_NODES = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4", "SLURM_TASKS_PER_NODE": "1(x4)"}


@pytest.mark.parametrize(
    ("argv", "tasks", "per_host"),
    [
        (("srun", "-n", "4"), "1(x4)", 1),
        (("srun", "-n", "4"), "8(x4)", 1),
        (("srun", "-n", "6"), "1(x4)", 2),
        (("srun", "-n", "4", "--nodes", "2"), "1(x4)", 2),
        (("mpirun", "-n", "4"), "1(x4)", 1),
        (("mpirun", "-n", "4"), "3(x4)", 3),
        (("mpirun", "-n", "2", "-H", "n1:2"), "1(x4)", 2),
        (("horovodrun", "-n", "4"), "1(x4)", 1),
        (("local", "-n", "4"), "1(x4)", 4),
    ],
)
def test_ranks_per_host_of_a_slurm_allocation(argv, tasks, per_host, monkeypatch):
    """Also without --nodes: they decide the number of threads, and whether ranks yield while they wait."""
    for name, value in {**FOUR_NODES, "SLURM_TASKS_PER_NODE": tasks}.items():
        monkeypatch.setenv(name, value)
    described = launch.describe(launch.parse([*argv, "--", "true"]))
    assert described.ranks_per_host == per_host


def test_slurm_variables_that_contradict_each_other(monkeypatch):
    for changed in ({"SLURM_JOB_NUM_NODES": "3"}, {"SLURM_TASKS_PER_NODE": "1(x3)"}):
        with pytest.raises(UserError, match="contradict each other; name the hosts with -H"):
            hosts.slurm_hosts({**FOUR_NODES, **changed})


def test_layout_with_different_numbers_of_tasks_per_node():
    variables = {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "1"}
    assert gloo.layout(rank_info.RankInfo("srun", 3, 5, 1), variables) == (2, 1, 2)
    assert gloo.layout(rank_info.RankInfo("srun", 4, 5, 0), {**variables, "SLURM_NODEID": "2"}) == (1, 2, 3)
    assert gloo.layout(rank_info.RankInfo("launch local", 1, 2, 1), {}) == (2, 0, 1)
    with pytest.raises(UserError, match="do not match 6 tasks"):
        gloo.layout(rank_info.RankInfo("srun", 3, 6, 1), variables)


@pytest.mark.parametrize("words", ["--help", f"{SBATCH} -- true", "local -n 1 --dry-run -- true"])
def test_the_launcher_imports_no_package(words):
    """So it starts at once, and needs none that training may need."""
    code = (
        "import sys; from hvdtrain.__main__ import main\n"
        f"try: main(['launch', *{words.split()}])\nexcept SystemExit: print(*sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    packages = {"torch", "mxnet", "tensorflow", "numpy", "rich", "jinja2", "yaml", "msgspec", "matplotlib", "shtab"}
    assert not packages & set(output.split("\n")[-2].split())
