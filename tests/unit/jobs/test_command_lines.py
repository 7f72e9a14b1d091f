"""The command lines of all launchers, compared with recorded ones."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.golden import ODD_ARGUMENTS, assert_recorded

from hvdtrain.cli import launch
from hvdtrain.errors import UserError
from hvdtrain.jobs import job
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.launchers import build, build_horovodrun
from hvdtrain.system.network import gloo_variables

ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/bin",
    "HOME": "/home/ada",
    "PYTHONPATH": "/srv/my code",
    "HOROVOD_CYCLE_TIME": "2",
    "AWS_SECRET_ACCESS_KEY": "not passed on",
}
JOBS = {
    "local": ["local", "-n", "2"],
    "local-odd": ["local", "-n", "1", "--env", "WORD=a b\nc"],
    "local-crowded": ["local", "-n", "8"],
    "horovodrun": ["horovodrun", "-n", "2"],
    "horovodrun-hosts": ["horovodrun", "-np", "4", "-H", "node1:2,node2:2", "--interface", "eth0"],
    "horovodrun-settings": [
        *("horovodrun", "-n", "2", "--env", "HOROVOD_TIMELINE=/tmp/a b.json", "--env", "HOROVOD_CYCLE_TIME=0.5")
    ],
    "mpirun": ["mpirun", "-n", "2"],
    "mpirun-hosts": ["mpirun", "-n", "3", "-H", "node1:2,node2:2", "--env", "EXTRA=1"],
    "mpirun-interface": ["mpirun", "-n", "4", "-H", "node1:2,node2:2", "--interface", "ib0"],
    "srun-gloo": ["srun", "-n", "4", "--nodes", "2"],
    "srun-pmix": ["srun", "-n", "4", "--mpi", "pmix", "--interface", "eth0"],
    "srun-container": ["srun", "-n", "4", "--container", "/images/hvd train.sif"],
    "horovodrun-survive": ["horovodrun", "-n", "3", "-H", "node1:2,node2:2", "--survive", "--max-np", "4"],
    "srun-pyxis": ["srun", "-n", "4", "--container", "hvdtrain:1"],
}


@pytest.mark.parametrize("name", JOBS)
def test_command_lines_equal_the_recorded_ones(name, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: "/srv/my job")
    monkeypatch.setenv("HVDTRAIN_RUN_NAME", "job")  # by default one that no other job has
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")  # on any machine
    program = ODD_ARGUMENTS if "odd" in name else ["python", "-m", "hvdtrain.mxnet_lenet"]
    options = launch.parse([*JOBS[name], "--", *program])
    described = replace(launch.describe(options), cores=4, as_root="mpi" in name, mpi_prefix="/opt/venv")
    specs = build(described, ENVIRONMENT)
    lines = [spec.pasteable().replace(shlex.quote(sys.executable), "python") for spec in specs]
    assert_recorded(f"{name}.txt", "\n".join(lines) + "\n")
    for spec in specs:  # a shell reads the line as the command that would be started
        if spec.remote:
            assert shlex.split(spec.pasteable())[:-1] == spec.command[:-1]
            assert list(spec.remote[-len(program) :]) == program
            continue
        variables = [f"{key}={value}" for key, value in sorted(spec.variables.items())]
        assert shlex.split(spec.pasteable()) == [*(["env", *variables] if variables else []), *spec.command]
        assert spec.command[-len(program) :] == program
        assert "AWS_SECRET_ACCESS_KEY" not in " ".join(spec.command)


@pytest.mark.parametrize(
    ("timeline", "variables", "expected"),
    [
        ("t.json", {"SLURM_ARRAY_TASK_ID": "3"}, "t-3.json"),
        ("/a b/t", {"SLURM_ARRAY_TASK_ID": "12"}, "/a b/t-12"),
        ("t-3.json", {"SLURM_ARRAY_TASK_ID": "3"}, "t-3.json"),  # by a launcher around this one
        ("DYNAMIC", {"SLURM_ARRAY_TASK_ID": "3"}, "DYNAMIC"),
        ("t.json", {}, "t.json"),
        ("", {"SLURM_ARRAY_TASK_ID": "3"}, None),
    ],
)
@pytest.mark.parametrize("by_option", [True, False])
def test_each_task_of_an_array_has_a_timeline_of_its_own(timeline, variables, expected, by_option):
    given = {"HOROVOD_TIMELINE": timeline} if timeline else {}
    described = job.Job(("true",), 2, environment=given if by_option else {})
    ranks = {**given, **job.variables(described, variables if by_option else {**given, **variables})}
    assert ranks.get("HOROVOD_TIMELINE") == expected


SET_BY_USERS = {
    **{"HOROVOD_CYCLE_TIME": "1", "OMPI_MCA_btl": "self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "HVDTRAIN_RUN_NAME": "a"},
    **{"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "HVDTRAIN_DATA": "/data"},
}
OF_RANKS = [
    {"HVDTRAIN_RANK": "0", "HVDTRAIN_SIZE": "1", "HVDTRAIN_LOCAL_RANK": "0", "HVDTRAIN_LOCAL_SIZE": "1"},
    {"HVDTRAIN_MEMBERSHIP": "1", "HVDTRAIN_REPLACES": "1"},
    gloo_variables((0, 1, 0, 1, 0, 1), "host", ("127.0.0.1", 1)),
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "1", "OMPI_MCA_ess": "^singleton", "OMPI_MCA_orte_launch": "1"},
    {"PMIX_RANK": "0", "PMIX_NAMESPACE": "1", "PMI_RANK": "0", "PMI_SIZE": "1"},
]


@pytest.mark.parametrize("of_rank", OF_RANKS)
def test_a_rank_that_launches_hands_on_what_its_user_has_set(of_rank):
    handed = job.for_launchers({**SET_BY_USERS, **of_rank})
    assert {name: handed[name] for name in handed if name != "PATH"} == SET_BY_USERS
    user = {**SET_BY_USERS, "HOROVOD_CONTROLLER": "mpi"}
    assert job.for_launchers(user).items() >= user.items()


def test_a_rank_that_may_be_lost_shares_the_cores_of_its_host_with_its_slots():
    words = ["horovodrun", "-n", "5", "-H", "node1:4,node2:1", "--survive", "--", "true"]
    specs = build(launch.describe(launch.parse(words)), ENVIRONMENT)
    assert [spec.variables["HVDTRAIN_LOCAL_SIZE"] for spec in specs] == [*"4444", "1"]


CREDENTIALS = {"WANDB_API_KEY": "correct-horse", "DSN": "https://ada:battery@db"}


@pytest.mark.parametrize("launcher", ["local", "horovodrun", "mpirun", "srun"])
def test_no_printed_command_line_shows_credentials(launcher, monkeypatch, capsys):
    """--dry-run: the shell that runs the line has them among its variables."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    given = [word for name in CREDENTIALS for word in ("--env", name)]
    with pytest.raises(SystemExit):
        launch.main([launcher, "-n", "1", *given, "--dry-run", "--", "true"])
    printed = capsys.readouterr().out
    assert printed.startswith('DSN="$DSN" WANDB_API_KEY="$WANDB_API_KEY" ')
    assert not any(secret in printed for secret in ("correct-horse", "battery"))


@pytest.mark.parametrize(("name", "value"), CREDENTIALS.items())
@pytest.mark.parametrize("by_value", [True, False])
def test_no_batch_script_holds_credentials(name, value, by_value, capsys):
    argv = ["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--env", f"{name}={value}" if by_value else name]
    with pytest.raises(SystemExit) as ended:
        launch.main([*argv, "--", "true"])
    printed = capsys.readouterr()
    assert value not in printed.err + printed.out
    assert ended.value.code == (2 if by_value else 0)
    assert f"export {name} in the shell" in printed.err if by_value else f"--env {name} -- " in printed.out


@pytest.mark.parametrize(
    ("hosts", "variables", "has_ssh", "expected"),
    [
        ((), {}, False, True),
        ((Host("localhost", 2),), {}, False, True),
        ((Host("node1", 2),), {}, False, False),
        ((), {"SLURM_JOB_ID": "1"}, False, False),
        ((), {}, True, False),
    ],
)
def test_open_mpi_needs_no_ssh_on_one_host(hosts, variables, has_ssh, expected, tmp_path):
    if has_ssh:
        (tmp_path / "ssh").touch(0o755)
    environment = {**ENVIRONMENT, "PATH": str(tmp_path), **variables}
    (spec,) = build(job.Job(("x",), 2, hosts, launcher="mpirun"), environment)
    assert ("--mca plm isolated" in " ".join(spec.command)) is expected


GIVEN = {
    "SLURM_NTASKS": "--ntasks", "SLURM_NPROCS": "--ntasks", "SLURM_NNODES": "--nodes", "SLURM_JOB_NUM_NODES": "--nodes",
    "SLURM_MPI_TYPE": "--mpi", "SLURM_KILL_BAD_EXIT": "--kill-on-bad-exit=0", "SLURM_UNBUFFEREDIO": "--unbuffered",
}  # fmt: skip
"""Options that srun always gets, and variables that would otherwise say them: command lines come first."""


@pytest.mark.parametrize("survives", [False, True], ids=["one step", "steps"])
@pytest.mark.parametrize(("name", "option"), GIVEN.items())
def test_options_of_srun_come_before_variables_of_slurm(name, option, survives):
    allocation = (Host("node1", 1), Host("node2", 1))
    described = job.Job(("true",), 2, allocation=allocation, nodes=2, launcher="srun", survives=survives)
    for spec in build(described, {**ENVIRONMENT, name: "1"}):
        assert option in spec.command[: spec.command.index(sys.executable)]


@pytest.mark.parametrize(
    ("name", "value", "stays"),
    [
        ("SLURM_EXPORT_ENV", "NONE", False),
        ("SLURM_EXPORT_ENV", "PATH,HOME", False),
        ("SRUN_EXPORT_ENV", "NIL", False),
        ("SLURM_EXPORT_ENV", "ALL,WORD=1", True),  # a variable of the user's own
        ("SLURM_EXPORT_ENV", "WORD=1,ALL", True),
        ("SLURM_WORKING_DIR", "/tmp", False),
        ("SLURM_REMOTE_CWD", "/tmp", False),
        ("SLURM_WAIT", "1", False),
        # They change how Slurm places tasks, of which the launcher has no option.
        ("SLURM_DISTRIBUTION", "cyclic", True),
        ("SLURM_CPU_BIND", "cores", True),
    ],
)
def test_no_variable_of_slurm_changes_what_ranks_have_or_when_they_end(name, value, stays):
    """In `launch srun`, and in the srun with which mpirun starts its daemons."""
    assert (name in job.for_launchers({**ENVIRONMENT, name: value})) is stays


EXCLUDED = ["--mca", "btl_tcp_if_exclude", "lo,docker0,virbr0", "--mca", "oob_tcp_if_exclude", "lo,docker0,virbr0"]
INCLUDED = ["--mca", "btl_tcp_if_include", "ib0", "--mca", "oob_tcp_if_include", "ib0"]
ERROR = None
PARAMETERS = [
    # The parameter of Open MPI that the user sets, the job's interface, and the launcher's own ones.
    ("", "", EXCLUDED),
    ("", "ib0", INCLUDED),
    *((f"{layer}_tcp_if_{choice}", "", []) for layer in ("btl", "oob") for choice in ("include", "exclude")),
    *((f"{layer}_tcp_if_include", "ib0", INCLUDED) for layer in ("btl", "oob")),  # --interface comes first
    *((f"{layer}_tcp_if_exclude", "ib0", ERROR) for layer in ("btl", "oob")),
    ("btl_tcp_links", "", EXCLUDED),
    ("orte_default_hostfile", "", EXCLUDED),
]
SET_BY = ["variable", "--env", "user's file", "site's file"]


@pytest.mark.parametrize("how", SET_BY)
@pytest.mark.parametrize(("name", "interface", "expected"), PARAMETERS)
def test_mpirun_gets_no_interfaces_that_contradict_those_of_the_user(name, interface, expected, how, tmp_path):
    """Open MPI takes either a list of those to use, or one of those not to use: with both, no rank reaches another."""
    variable, own = {f"OMPI_MCA_{name}": "eth7"} if name else {}, tmp_path / ".openmpi"
    files = {"user's file": own / "mca-params.conf", "site's file": tmp_path / "etc" / "openmpi-mca-params.conf"}
    if name and how in files:
        files[how].parent.mkdir()
        files[how].write_text(f"# btl_tcp_if_include = eth9\n\n  {name} = eth7  # ours\n")
    environment = {**ENVIRONMENT, "HOME": str(tmp_path), **(variable if how == "variable" else {})}
    hosts = (Host("node1", 1), Host("node2", 1))
    given = {"interface": interface or None, "environment": variable if how == "--env" else {}, "cores": 4}
    described = job.Job(("x",), 2, hosts, launcher="mpirun", mpi_prefix=str(tmp_path), **given)
    if expected is ERROR:
        with pytest.raises(UserError, match=rf"Open MPI's {name} is set \(OMPI_MCA_{name} or mca-params.conf\)"):
            build(described, environment)
        assert build(replace(described, hosts=()), environment)  # on one host mpirun gets no interface
    else:
        (spec,) = build(described, environment)
        start = spec.command.index(str(tmp_path)) + 1
        assert spec.command[start : start + len(EXCLUDED)][: len(expected)] == expected
        assert " ".join(spec.command).count("_tcp_if_") == len(expected) // 3


@pytest.mark.parametrize("name", ["orte_default_hostfile", "orte_default_dash_host"])
def test_hosts_that_only_open_mpi_knows_are_refused(name):
    """It would start ranks elsewhere, where the launcher takes all of them for ranks of this host."""
    environment = {**ENVIRONMENT, f"OMPI_MCA_{name}": "hosts"}
    with pytest.raises(UserError, match=f"Open MPI's {name} is set .*; remove it, or name the hosts by -H"):
        build(job.Job(("x",), 2, launcher="mpirun"), environment)
    assert build(job.Job(("x",), 2, (Host("localhost", 2),), launcher="mpirun"), environment)  # -H comes first
    assert build(job.Job(("x",), 2, launcher="local"), environment)


def test_ranks_yield_unless_the_user_says_otherwise():
    for name, count in (("OMPI_MCA_mpi_yield_when_idle", 0), ("OMPI_MCA_mpi_other", 1)):
        crowded = job.Job(("x",), 2, launcher="mpirun", cores=1)
        (spec,) = build(crowded, {**ENVIRONMENT, name: "0"})
        assert spec.command.count("mpi_yield_when_idle") == count


@pytest.mark.parametrize("mpi", ["", "pmix"])
def test_the_interface_of_a_job_is_also_that_of_an_mpi_that_slurm_starts(mpi):
    described = job.Job(("x",), 2, launcher="srun", mpi=mpi, interface="ib0")
    (spec,) = build(described, {**ENVIRONMENT, "OMPI_MCA_btl_tcp_if_include": "eth7"})
    assert spec.variables.get("OMPI_MCA_btl_tcp_if_include", "") == ("ib0" if mpi else "")
    if mpi:
        with pytest.raises(UserError, match="Open MPI's btl_tcp_if_exclude is set"):
            build(described, {**ENVIRONMENT, "OMPI_MCA_btl_tcp_if_exclude": "eth7"})


def test_open_mpi_in_a_folder_with_a_space(monkeypatch):
    """Open MPI does not quote its own command line for ssh: no other host would start, and the message is unclear."""
    options = launch.parse(["mpirun", "-n", "2", "-H", "node1:1,node2:1", "--", "true"])
    described = replace(launch.describe(options), mpi_prefix="/opt/my venv")
    with pytest.raises(UserError, match="cannot start itself on other hosts in a folder with a space"):
        build(described, ENVIRONMENT)
    assert build(replace(described, hosts=()), ENVIRONMENT)
    monkeypatch.setattr(sys, "executable", "/opt/my venv/bin/python")
    with pytest.raises(UserError, match="name the interface with --interface"):
        build_horovodrun(described, ENVIRONMENT)


@pytest.mark.parametrize(
    ("hosts", "option", "value"),
    [
        # With Gloo it starts a rank in each slot.
        ((Host("a", 2), Host("b", 2), Host("c", 1)), "-H", "a:2,b:1"),
        # It accepts no other interface where all hosts are this one.
        ((Host("localhost", 3),), "--network-interfaces", "lo"),
    ],
)
def test_horovodrun_gets_its_slots_and_its_interface(hosts, option, value):
    (spec,) = build(job.Job(("x",), 3, hosts, interface="eth0", launcher="horovodrun"), ENVIRONMENT)
    assert spec.command[spec.command.index(option) + 1] == value
    assert spec.variables["HOROVOD_GLOO_IFACE"] == ("lo" if value == "lo" else "eth0")


def test_each_rank_that_may_be_lost_is_a_step_of_its_own(monkeypatch):
    """In an allocation of Slurm, whose nodes the ranks are spread over."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    options = launch.parse(["srun", "-n", "2", "--survive", "--", "x"])
    described = launch.describe(options)
    assert described.spare == (Host("node1", 2), Host("node2", 2))
    specs = build(described, ENVIRONMENT)
    assert [spec.command[spec.command.index("--nodelist") + 1] for spec in specs] == ["node1", "node2"]
    for rank, spec in enumerate(specs):
        assert spec.command[:6] == ["srun", "--overlap", "--nodes", "1", "--ntasks", "1"]
        assert (spec.rank, spec.variables["HVDTRAIN_RANK"], spec.variables["HVDTRAIN_SIZE"]) == (rank, str(rank), "2")


def test_what_a_shell_on_another_host_reads_sets_the_variables_and_runs_the_agent(tmp_path, monkeypatch):
    """It gets them through its standard input: no user of a host sees them."""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", "import os, sys; print(os.environ['WORD'], os.getcwd(), sys.argv[1:])", "a 'b'"]
    script = job.remote_script(command, {"WORD": "x 'y'\n$HOME", "HOME": "/nowhere", "PATH": os.environ["PATH"]})
    assert b"/nowhere" not in script
    done = subprocess.run(["sh"], input=script, capture_output=True, text=False, check=True)
    assert done.stdout.decode() == f"x 'y'\n$HOME {tmp_path} [\"a 'b'\"]\n"


ODD_FOLDERS = [
    "a b",
    "a;touch hit",
    "$(touch hit)",
    "`touch hit`",
    'it\'s "odd"',
    "line\nbreak",
    "a & touch hit",
    "grün",
]


@pytest.mark.parametrize("folder", ODD_FOLDERS)
def test_horovodrun_quotes_what_a_shell_would_take_apart(tmp_path, monkeypatch, folder):
    """By a patch of setup/horovod. What the shell of another host would run is run here."""
    gloo_run = pytest.importorskip("horovod.runner.gloo_run")
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    commands = []
    monkeypatch.setattr(gloo_run.safe_shell_exec, "execute", lambda command, **_: commands.append(command) or 0)
    monkeypatch.setattr(gloo_run.network, "resolve_host_address", lambda _: "192.0.2.1")
    settings = SimpleNamespace(elastic=False, ssh_port=None, ssh_identity_file=None, verbose=0, output_filename=None)
    settings.prefix_output_with_timestamp = False
    slot = SimpleNamespace(hostname="node1", rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    command = gloo_run._slot_info_to_command_fn("pwd", {"WORD": "a b", "touch hit;A": "1"})(slot)
    gloo_run._exec_command_fn(settings)(command, slot, None)
    there = tmp_path / "there"
    there.mkdir()
    (command,) = commands
    done = subprocess.run(["sh", "-c", shlex.split(command)[-1]], cwd=there, capture_output=True, text=True)
    assert (done.stdout.removesuffix("\n"), done.stderr) == (str(tmp_path / folder), "")
    assert not [*tmp_path.rglob("hit")]


def test_the_process_of_horovodrun_becomes_mpirun(monkeypatch):
    """So that what ends horovodrun ends mpirun; a patch of setup/horovod."""
    mpi_run = pytest.importorskip("horovod.runner.mpi_run")
    monkeypatch.setattr(mpi_run, "_get_mpi_implementation_flags", lambda *_, **__: ([], [], "OpenMPI"))
    started = []
    monkeypatch.setattr(mpi_run.os, "execve", lambda *words: started.append(words[1][2]))
    settings = SimpleNamespace(tcp_flag=None, ssh_port=None, ssh_identity_file=None, hosts="a:1", num_proc=1, verbose=0)
    for name in ("prefix_output_with_timestamp", "binding_args", "output_filename", "extra_mpi_args", "run_func_mode"):
        setattr(settings, name, None)
    mpi_run.mpi_run(settings, None, {"PATH": "/bin", "$(touch hit)": ""}, ["true"])
    assert started[0].startswith("exec mpirun ") and "-x '$(touch hit)'" in started[0]
