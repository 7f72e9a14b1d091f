"""Jobs on several hosts and in a real Slurm: they end with the weights of one process, and leave no process behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.cluster import HOST_NEEDS, SLURM_NEEDS, Hosts, Slurm, need
from support.jobs import PROGRAMS, ROOT, distance, finish, newest, train, wait_for

from hvdtrain.system.slurm import hostnames

MATRIX = pytest.mark.matrix
QUICK = ("--max-steps", "6", "--lr", "0.02", "--device", "cpu")
LAUNCH = [sys.executable, "-m", "hvdtrain", "launch"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    need(HOST_NEEDS, "iproute2 util-linux openssh-server openssh-client")
    made = Hosts(tmp_path_factory.mktemp("hosts"), 3)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Final weights of one process, by framework."""
    folder, known = tmp_path_factory.mktemp("one"), {}

    def weights(framework):
        if framework not in known:
            made = train(folder, framework, "--strategy", "single", "--name", framework, *QUICK)
            known[framework] = newest(made).weights
        return known[framework]

    return weights


def program(framework: str, *options: str) -> list[str]:
    return ["python", "-m", f"hvdtrain.{framework}_lenet", *QUICK, "--name", "run", *options]


HOSTS = [
    ("torch", ["horovodrun", "--interface", "eth0"], "host1:1,host2:1", ()),
    pytest.param("mxnet", ["mpirun"], "host1:1,host2:1,host3:1", (), marks=MATRIX),
    pytest.param("tensorflow", ["horovodrun", "--mpi", "--interface", "eth0"], "host1:1,host2:1", (), marks=MATRIX),
    pytest.param("torch", ["mpirun", "--interface", "eth0"], "host3:2,host2:1", ("--strategy", "ring"), marks=MATRIX),
]


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


def skip_if_the_folder_has_a_space(by: list[str]) -> None:
    if " " in sys.prefix and ("mpirun" in by or "--mpi" in by or by == ["horovodrun"]):
        pytest.skip(
            "Open MPI, and horovodrun without --interface, cannot start on other hosts in a folder with a space"
        )


SLEEP = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize(
    "by",
    [["horovodrun", "--interface", "eth0"], ["mpirun"], pytest.param(["horovodrun", "--mpi"], marks=MATRIX)],
)
def test_a_killed_rank_on_another_host(hosts, tmp_path, by):
    """The job ends at once on all hosts, the message names the rank, and no process stays behind."""
    skip_if_the_folder_has_a_space(by)
    words = [*LAUNCH, *by, "-n", "2", "-H", "host1:1,host2:1", "--", "python", "-c", SLEEP]
    process = hosts.start("host1", words, tmp_path)
    lines = [process.stdout.readline() for _ in range(2)]
    assert sorted(lines) == ["[0] up\n", "[1] up\n"]
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


def ranks_on(hosts: Hosts, name: str) -> list[int]:
    """The processes of the ranks, without their agents."""
    return [pid for pid, line in hosts.processes(name).items() if line.startswith("python -c import os, signal")]


@MATRIX
def test_a_host_that_loses_its_network(hosts, tmp_path):
    """The job ends soon after the hang timeout, and resumes with the rank of the host that still responds."""
    words = [*LAUNCH, "horovodrun", "--interface", "eth0", "-n", "2", "-H", "host1:1,host2:1"]
    options = ["--max-steps", "24", "--lr", "0.02", "--momentum", "0", "--log-every", "1", "--device", "cpu"]
    own = ["--name", "run", "--auto-resume", "--checkpoint-every", "2", "--hang-timeout", "5"]
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
    assert "1 rank(s) on cpu" in output
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
    words = [*LAUNCH, "horovodrun", "-n", "2", "-H", "host1:1,host9:1", "--", "true"]
    status, output = hosts.run("host1", words, tmp_path)
    assert status == 2
    assert "host9: no ssh without a password (ssh: Could not resolve hostname host9" in output
    assert "add host9 and its address to /etc/hosts" in output


# Slurm.


@pytest.fixture(scope="module")
def slurm(hosts, tmp_path_factory):
    need(SLURM_NEEDS, "slurm-wlm slurm-wlm-basic-plugins munge")
    made = Slurm(hosts, tmp_path_factory.mktemp("slurm"))
    made.up()
    return made


IN_SLURM = [
    ("torch", ["srun", "--nodes", "2"], ()),
    ("mxnet", ["srun", "--nodes", "2", "--mpi", "pmix"], ()),
    pytest.param("torch", ["mpirun"], ("--strategy", "mpi"), marks=MATRIX),
    pytest.param("tensorflow", ["horovodrun"], (), marks=MATRIX),
    pytest.param("torch", ["srun", "--nodes", "2", "--interface", "eth0"], ("--strategy", "ddp"), marks=MATRIX),
    pytest.param("tensorflow", ["srun", "--nodes", "2"], ("--strategy", "multiworker"), marks=MATRIX),
    pytest.param("mxnet", ["srun", "--nodes", "2"], ("--strategy", "kvstore", "--kvstore", "dist_sync"), marks=MATRIX),
]


@pytest.mark.parametrize(("framework", "by", "options"), IN_SLURM)
def test_training_in_slurm_equals_one_process(slurm, tmp_path, one_process, framework, by, options):
    """In an allocation of two nodes, from its first node as a batch script runs there."""
    if "pmix" in by and slurm.run(["srun", "--mpi=pmix", "-n1", "true"])[0]:
        pytest.skip("this Slurm cannot load PMIx: apt-get install libpmix-dev")
    if by == ["horovodrun"]:
        skip_if_the_folder_has_a_space(by)
    inside = [*LAUNCH, *by, "-n", "2", "--", *program(framework, *options)]
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *inside]
    status, output = slurm.run(words, tmp_path)
    assert status == 0, output
    assert "2 rank(s) on cpu" in output
    assert distance(newest(tmp_path / "runs" / "run").weights, one_process(framework)) < 1e-5


@MATRIX
def test_a_killed_rank_in_slurm_restarts_the_job(slurm, tmp_path):
    """In the same allocation, from the newest checkpoint, with the final weights of an undisturbed job."""
    options = ["--max-steps", "8", "--lr", "0.02", "--checkpoint-every", "2", "--device", "cpu", "--strategy", "ring"]
    program = ["python", str(PROGRAMS), "die", "torch", *options]
    inside = [*LAUNCH, "srun", "-n", "2", "--nodes", "2", "--restarts", "2", "--", *program]
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *inside, "--name", "run", "--auto-resume"]
    status, output = slurm.run(words, tmp_path)
    assert status == 0, output
    assert "rank 1 on host2 was killed by SIGKILL; ending the others" in output
    assert "resumed from runs/run/checkpoints/step-00000004" in output
    undisturbed = train(tmp_path, "torch", *options, "--name", "undisturbed", by="local", np=2)
    assert distance(newest(tmp_path / "runs" / "run").weights, newest(undisturbed).weights) == 0


def submit(slurm: Slurm, folder: Path, words: list[str], *options: str) -> str:
    """Submit a batch script; the job's number."""
    made = [*LAUNCH, "sbatch", "--nodes", "2", "--ranks-per-node", "1", *options, "--submit", "--", *words]
    status, output = slurm.run(made, folder)
    assert status == 0, output
    return re.search(r"Submitted batch job (\d+)", output)[1]


def log(folder: Path, job: str) -> str:
    path = folder / f"hvdtrain-{job}.log"
    return path.read_text() if path.exists() else ""


def test_a_batch_job_resumes_after_its_time_limit(slurm, tmp_path):
    """Before the limit the ranks write a checkpoint; the requeued job ends with the weights of an undisturbed one."""
    slow = ["python", str(PROGRAMS), "slowly_at_first", "torch"]
    options = ["--max-steps", "60", "--lr", "0.02", "--device", "cpu", "--auto-resume", "--name", "run"]
    # Slurm's shortest limit is one minute, so the signal comes after 12 s.
    job = submit(slurm, tmp_path, [*slow, *options], "--time", "1", "--signal-before", "48")
    wait_for(lambda: slurm.state(job) == "COMPLETED", 180, lambda: f"{slurm.state(job)}: {log(tmp_path, job)}")
    text = log(tmp_path, job)
    assert "was asked to stop by SIGUSR1; the checkpoint of step" in text, text
    undisturbed = train(
        tmp_path, "torch", *options[:6], "--strategy", "ring", "--name", "undisturbed", by="local", np=2
    )
    assert newest(tmp_path / "runs" / "run").position.step == 60
    assert distance(newest(tmp_path / "runs" / "run").weights, newest(undisturbed).weights) < 1e-6


def test_scancel_and_a_killed_rank_in_slurm(slurm, hosts, tmp_path):
    words = ["python", "-c", SLEEP]
    job = submit(slurm, tmp_path, words)
    wait_for(lambda: log(tmp_path, job).count("] up") == 2, 30, lambda: log(tmp_path, job))
    (victim,) = ranks_on(hosts, "host2")
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: slurm.state(job) == "FAILED", 10, lambda: f"{slurm.state(job)}: {log(tmp_path, job)}")
    assert "rank 1 on host2 was killed by SIGKILL; ending the others" in log(tmp_path, job)
    assert not any(hosts.programs("time.sleep(600)").values())
    job = submit(slurm, tmp_path, words)
    wait_for(lambda: log(tmp_path, job).count("] up") == 2, 30, lambda: log(tmp_path, job))
    assert slurm.run(["scancel", job])[0] == 0
    wait_for(lambda: slurm.state(job) == "CANCELLED", 30, lambda: slurm.state(job))
    wait_for(lambda: not any(hosts.programs("time.sleep(600)").values()), 15, lambda: str(hosts.programs("sleep")))


@MATRIX
def test_the_command_line_of_a_dry_run_works_with_srun(slurm, tmp_path):
    """Each agent sets Horovod's variables from Slurm's, and the rendezvous server runs on rank 0's node."""
    status, line = slurm.run(
        [*LAUNCH, "srun", "-n", "2", "--nodes", "2", "--dry-run", "--", *program("torch")], tmp_path
    )
    assert status == 0, line
    status, output = slurm.run(["bash", "-c", line.splitlines()[-1]], tmp_path)
    assert status == 0, output
    assert "2 rank(s) on cpu" in output


def test_node_lists_are_expanded_as_slurm_does(slurm):
    for nodes in ("host[1-2]", "a[01-03,7],c", "r[1-2]n[8-10]"):
        _, output = slurm.run(["scontrol", "show", "hostnames", nodes])
        assert hostnames(nodes) == output.split()
