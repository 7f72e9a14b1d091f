"""Jobs on several hosts: they end with the weights of one process, and leave no process behind.

They start processes because launchers, ssh and agents share the work of starting and ending ranks on other hosts.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time

import pytest
from support.cluster_jobs import LAUNCH, SLEEP, program, ranks_on, skip_if_the_folder_has_a_space
from support.jobs import PROGRAMS, ROOT, distance, finish, newest, train, wait_for

MATRIX = pytest.mark.matrix
HOSTS = [
    ("mxnet", ["horovodrun", "--interface", "eth0"], "host1:1,host2:1", ()),
    pytest.param("torch", ["mpirun"], "host1:1,host2:1,host3:1", (), marks=MATRIX),
    pytest.param("torch", ["mpirun", "--interface", "eth0"], "host3:2,host2:1", ("--strategy", "ring"), marks=MATRIX),
]


@pytest.mark.guarantee("weights-of-one-process")
@pytest.mark.parametrize(("framework", "by", "where", "options"), HOSTS)
def test_training_on_hosts_by_ssh_equals_one_process(hosts, tmp_path, one_process, framework, by, where, options):
    skip_if_the_folder_has_a_space(by)
    ranks = sum(int(host.partition(":")[2]) for host in where.split(","))
    words = [*LAUNCH, *by, "-n", str(ranks), "-H", where, "--", *program(framework, *options)]
    status, output = hosts.run("host1", words, tmp_path)
    assert status == 0, output
    assert f"{ranks} rank(s) on cpu" in output
    assert distance(newest(tmp_path / "runs" / "run").weights, one_process(framework)) < 1e-5
    assert not any(hosts.programs("hvdtrain.jobs.agent").values())


@pytest.mark.guarantee("killed-rank")
@pytest.mark.parametrize("by", [["horovodrun", "--interface", "eth0"], ["mpirun"]])
def test_a_killed_rank_on_another_host(hosts, tmp_path, by):
    """The job ends at once on all hosts, the message names the rank, and no process stays behind."""
    skip_if_the_folder_has_a_space(by)
    words = [*LAUNCH, *by, "-n", "2", "-H", "host1:1,host2:1", "--", "python", "-c", SLEEP]
    process = hosts.start("host1", words, tmp_path)
    lines = iter(process.stdout.readline, "")
    of_ranks = (line for line in lines if line.startswith(("[0]", "[1]")))
    assert sorted(itertools.islice(of_ranks, 2)) == ["[0] up\n", "[1] up\n"]
    (victim,) = ranks_on(hosts, "host2")
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    status, output = finish(process, 30)
    took = time.monotonic() - killed
    assert status == 128 + signal.SIGKILL, output
    assert "hvdtrain: rank 1 on host2 was killed by SIGKILL; ending the others" in output
    assert took < 5, f"it took {took:.1f} s"
    assert not any(hosts.programs("time.sleep(600)").values())
    assert not any(hosts.programs("hvdtrain").values())


ODD_FOLDERS = [
    ("horovodrun --interface eth0", "a;touch hit"),
    *(
        pytest.param(by, name, marks=MATRIX)
        for by in ("horovodrun --interface eth0", "horovodrun --survive", "mpirun")
        for name in ("a b", "$(touch hit)", 'it\'s "odd"\nand `touch hit`')
    ),
]


@pytest.mark.parametrize(("by", "folder"), ODD_FOLDERS)
def test_ranks_on_other_hosts_run_in_the_folder_of_the_job_whatever_its_name(hosts, tmp_path, by, folder):
    skip_if_the_folder_has_a_space(by.split())
    (tmp_path / folder).mkdir()
    code = "import os; print(repr(os.getcwd()), repr(os.environ['WORD']))"
    given = ["--env", f"WORD={folder}", "--", "python", "-c", code]
    words = [*LAUNCH, *by.split(), "-n", "2", "-H", "host1:1,host2:1", *given]
    status, output = hosts.run("host1", words, tmp_path / folder)
    lines = sorted(line for line in output.splitlines() if line.startswith("["))
    assert (status, lines) == (0, [f"[{rank}] {str(tmp_path / folder)!r} {folder!r}" for rank in (0, 1)]), output
    assert not [*tmp_path.rglob("hit"), *hosts.home.rglob("hit")]


@MATRIX
def test_a_job_on_two_hosts_is_seen_from_a_third(hosts, tmp_path):
    """What happens to a rank is in the list of runs, and in the timeline, with its number and its host."""
    words = [*LAUNCH, "horovodrun", "--interface", "eth0", "-n", "2", "-H", "host1:1,host2:1"]
    options = ["--epochs", "500", "--device", "cpu", "--name", "run", "--timeline", "20:30", "--log-every", "5"]
    process = hosts.start("host1", [*words, "--", "python", "-m", "hvdtrain.torch_lenet", *options], tmp_path)
    seen: list[dict] = []

    def is_seen(**values: object) -> bool:
        if (tmp_path / "runs").is_dir():
            _, output = hosts.run("host3", [sys.executable, "-m", "hvdtrain", "runs", "--json"], tmp_path)
            seen[:] = json.loads(output)
        return any(one.items() >= values.items() for one in seen)

    wait_for(lambda: is_seen(state="training", ranks=2), 60, lambda: seen)
    beats = {rank: json.loads((tmp_path / f"runs/run/heartbeats/rank-{rank}.json").read_text()) for rank in (0, 1)}
    assert [beats[rank]["host"] for rank in (0, 1)] == ["host1", "host2"]
    programs = {line: pid for pid, line in hosts.processes("host2").items() if line.startswith("python -m hvdtrain.t")}
    (pid,) = programs.values()  # hosts number their processes by themselves
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: is_seen(state="waiting", rank=1), 20, lambda: seen)
    assert f"rank 1 (process {beats[1]['pid']} on host2" in seen[0]["reason"]
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: is_seen(state="training"), 20, lambda: seen)
    os.kill(pid, signal.SIGKILL)
    assert finish(process, 30)[0] == 128 + signal.SIGKILL
    assert is_seen(state="failed", rank=1, reason="rank 1 on host2 was killed by SIGKILL")
    trace = json.loads((tmp_path / "runs" / "run" / "timeline-20-30.json").read_text())
    names = [one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "process_name"]
    assert names == ["rank 0 (host1)", "rank 1 (host2)"]


@MATRIX
@pytest.mark.parametrize("count", [2, 3])
def test_a_host_that_loses_its_network(hosts, tmp_path, count):
    """The job ends soon after the hang timeout, and resumes on the hosts that still respond."""
    where = ",".join(f"host{number}:1" for number in range(1, count + 1))
    words = [*LAUNCH, "horovodrun", "--interface", "eth0", "-n", "2", "-H", where]
    options = ["--max-steps", "24", "--lr", "0.02", "--momentum", "0", "--log-every", "1", "--device", "cpu"]
    own = ["--name", "run", "--resume", "auto", "--checkpoint-every", "2", "--hang-timeout", "5"]
    program = ["python", str(PROGRAMS), "slowly", "torch", *options, *own]
    restarts = ["--restarts", "2", "--min-np", "1"]
    process = hosts.start("host1", [*words, *restarts, "--", *program], tmp_path, HVDTRAIN_TEST_STEP_S="0.3")
    folder = tmp_path / "runs" / "run"
    wait_for(lambda: list(folder.glob("checkpoints/step-*04")), 90, lambda: f"exit status {process.poll()}")
    hosts.cable("host2", plugged=False)
    unplugged = time.monotonic()
    try:
        wait_for((folder / "attempts.json").exists, 30, lambda: "the job did not end")
        took = time.monotonic() - unplugged
        status, output = finish(process, 90)
    finally:
        hosts.cable("host2", plugged=True)
    assert status == 0, output
    assert "continuing without host2: no ssh without a password" in output
    assert f"{count - 1} rank(s) on cpu" in output
    assert json.loads((folder / "attempts.json").read_text())[1]["hosts"] == ["host1", "host3"][: count - 1]
    assert took < 5 + 10, f"it took {took:.1f} s"
    alone = train(tmp_path, "torch", *options, "--strategy", "single", "--name", "alone")
    assert distance(newest(folder).weights, newest(alone).weights) < 1e-5
    wait_for(lambda: not any(hosts.programs("programs.py").values()), 20, lambda: str(hosts.programs("programs.py")))


def test_a_host_with_other_files_is_reported(hosts, tmp_path):
    """No rank starts if one host has another hvdtrain."""
    other = tmp_path / "errors.py"
    other.write_text((ROOT / "hvdtrain" / "errors.py").read_text() + "\n# changed\n")
    there = str(ROOT / "hvdtrain" / "errors.py")
    assert hosts.run("host2", ["mount", "--bind", str(other), there], tmp_path)[0] == 0
    try:
        words = [*LAUNCH, "mpirun", "-n", "2", "-H", "host1:1,host2:1", "--", "python", "-c", "print('started')"]
        status, output = hosts.run("host1", words, tmp_path)
    finally:
        hosts.run("host2", ["umount", there], tmp_path)
    assert (status, "started" in output) == (2, False), output
    assert "host2: it differs from this host: the content of hvdtrain's files" in output


def test_a_host_that_does_not_exist_is_reported(hosts, tmp_path):
    words = [*LAUNCH, "horovodrun", "-n", "2", "-H", "host1:1,host9:1", "--start-timeout", "1", "--", "true"]
    status, output = hosts.run("host1", words, tmp_path)
    assert status == 2
    assert "hvdtrain: waiting up to 1 s for host9: no ssh without a password" in output
    assert "\nhvdtrain: host9: no ssh without a password (ssh: Could not resolve hostname host9" in output
    assert "add host9 and its address to /etc/hosts" in output


@MATRIX
@pytest.mark.parametrize("by", [["mpirun"], ["horovodrun", "--survive"]])
def test_a_host_whose_name_resolves_late_is_awaited(hosts, tmp_path, by):
    known = hosts.folder / "hosts"
    text = known.read_text()
    known.write_text(text.replace(f"{hosts.address('host2')} host2\n", ""))
    try:
        words = [*LAUNCH, *by, "-n", "2", "-H", "host1:1,host2:1", "--start-timeout", "60", "--", "echo", "up"]
        process = hosts.start("host1", words, tmp_path)
        lines = iter(process.stdout.readline, "")
        assert any("waiting up to 60 s for host2" in line for line in lines)
    finally:
        known.write_text(text)
    status, output = finish(process, 60)
    assert (status, "[1] up" in output) == (0, True), output


@MATRIX
@pytest.mark.parametrize("by", [["mpirun"], ["horovodrun", "--interface", "eth0"], ["horovodrun", "--survive"]])
def test_a_terminal_that_ssh_is_configured_to_open_prints_no_credentials(hosts, tmp_path, by):
    skip_if_the_folder_has_a_space(by)
    config = hosts.home / ".ssh" / "config"
    text = config.read_text()
    config.write_text(f"{text}  RequestTTY force\n")
    try:
        given = ["--env", "MY_API_KEY", "--", "python", "-c", "import os; print(len(os.environ['MY_API_KEY']))"]
        words = [*LAUNCH, *by, "-n", "2", "-H", "host1:1,host2:1", *given]
        status, output = hosts.run("host1", words, tmp_path, MY_API_KEY="correct-horse")
    finally:
        config.write_text(text)
    own = sorted(line for line in output.splitlines() if line.startswith("["))
    assert (status, own) == (0, ["[0] 13", "[1] 13"]), output


@MATRIX
@pytest.mark.parametrize("name", ["btl_tcp_if_include", "btl_tcp_if_exclude", "oob_tcp_if_include"])
def test_interfaces_that_the_user_names_to_open_mpi(hosts, tmp_path, name):
    """As plain mpirun uses them."""
    pytest.importorskip("mpi4py")
    skip_if_the_folder_has_a_space(["mpirun"])
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"
    words = [*LAUNCH, "mpirun", "-n", "2", "-H", "host1:1,host2:1", "--", "python", "-c", code]
    variable = {f"OMPI_MCA_{name}": "lo" if name.endswith("exclude") else "eth0"}
    status, output = hosts.run("host1", words, tmp_path, **variable)
    assert (status, output.count("] 2\n")) == (0, 2), output
