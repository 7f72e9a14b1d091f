"""Jobs on several hosts and in a real Slurm: they end with the weights of one process, and leave no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.cluster import HOST_NEEDS, OTHER_PORT, SLURM_NEEDS, Hosts, Slurm, need
from support.jobs import PROGRAMS, ROOT, distance, finish, newest, train, wait_for

from hvdtrain.jobs.attempts import last_step
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


@pytest.mark.parametrize(
    "by",
    [
        ["horovodrun", "--interface", "eth0"],
        ["mpirun"],
        pytest.param(["horovodrun"], marks=MATRIX),
        pytest.param(["horovodrun", "--mpi"], marks=MATRIX),
    ],
)
def test_ssh_with_a_key_on_another_port(hosts, tmp_path, by):
    """No ssh of the launcher, nor of what it starts, uses the port and the key that ssh's own configuration names."""
    skip_if_the_folder_has_a_space(by)
    own, other = hosts.folder / "host2.sshd.log", hosts.folder / "host2.port.log"
    before = own.read_text()
    ssh = ["--ssh-port", str(OTHER_PORT), "--ssh-key", str(hosts.folder / "key")]
    secret = ["--env", "A_TOKEN=correct-horse"]  # variables with credentials go to the other host by ssh, too
    job = [*LAUNCH, *by, "-n", "2", "-H", "host1:1,host2:1"]
    status, output = hosts.run("host1", [*job, *ssh, *secret, "--", "printenv", "A_TOKEN"], tmp_path)
    assert (status, output.count("] correct-horse")) == (0, 2), output
    assert own.read_text() == before
    assert "Accepted publickey for root" in other.read_text()
    status, output = hosts.run("host1", [*job, "--ssh-port", "2223", "--", "true"], tmp_path)
    assert status == 2
    assert "ssh -v -p 2223 host2 true" in output


@MATRIX
def test_the_doctor_checks_hosts_on_another_port(hosts, tmp_path):
    ssh = ["--ssh-port", str(OTHER_PORT), "--ssh-key", str(hosts.folder / "key")]
    words = [sys.executable, "-m", "hvdtrain", "doctor", "--only", "ssh", "--hosts", "host2", *ssh]
    status, output = hosts.run("host1", words, tmp_path)
    assert (status, "host2: ssh works" in output) == (0, True), output


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


def submitted(slurm: Slurm, folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a command that reads which jobs were submitted from this folder."""
    return slurm.run([sys.executable, "-m", "hvdtrain", *words], folder, XDG_STATE_HOME=str(folder / "state"))


def test_an_array_trains_a_sweep(slurm, tmp_path):
    """Each task trains one of 2 x 2 trials, all write one table, and a task is queued again by its own number."""
    options = ["--nodes", "1", "--ranks-per-node", "1", "--array", "0-3", "--sbatch", "--comment='a # \"b\" \\c'"]
    sweep = ["hvdtrain", "sweep", "--set", "lr=0.01,0.02", "--set", "batch-size=32,64", "--output", "all"]
    training = ["--framework", "mxnet", "--strategy", "single", "--max-steps", "2"]
    words = ["launch", "sbatch", *options, "--submit", "--", *sweep, "--", "train", *training]
    status, output = submitted(slurm, tmp_path, *words)
    assert status == 0, output
    job = output.split()[-1]
    assert 'Comment=a # "b" \\c' in slurm.run(["scontrol", "show", "job", job])[1]

    def table() -> str:
        return submitted(slurm, tmp_path, "launch", "status", job)[1]

    wait_for(lambda: "4 completed" in table(), 90, lambda: table() + log(tmp_path, f"{job}_0"))
    assert "all: 4 trial(s) complete" in table()
    assert {path.name for path in tmp_path.glob("*.log")} == {f"hvdtrain-{job}_{task}.log" for task in range(4)}
    assert "| 64 | 0.02 | 1 |" in (tmp_path / "all" / "sweep.md").read_text()
    assert not list(tmp_path.glob("all/*.log"))
    status, output = submitted(slurm, tmp_path, "sweep", "--table", "--output", "all")
    assert (status, output.count("batch-size ")) == (0, 4), output


def test_a_job_that_is_cancelled_writes_a_checkpoint_and_is_not_queued_again(slurm, tmp_path):
    words = ["python", "-m", "hvdtrain.mxnet_lenet", "--strategy", "single", "--epochs", "10000", "--log-every", "2"]
    options = ["launch", "sbatch", "--nodes", "1", "--ranks-per-node", "1", "--submit", "--job-name", "long"]
    status, output = submitted(slurm, tmp_path, *options, "--", *words)
    assert status == 0, output
    first = output.split()[-1]
    held = submitted(slurm, tmp_path, *options, "--sbatch", "--hold", "--", *words)[1].split()[-1]
    run = tmp_path / "runs" / f"slurm-{first}"
    wait_for(lambda: (run / "metrics.jsonl").exists(), 60, lambda: log(tmp_path, first))
    wait_for(lambda: last_step(run), 20)
    status, output = submitted(slurm, tmp_path, "launch", "status", "--json")
    rows = {row["id"]: row for row in json.loads(output)}
    assert (rows[first]["state"], rows[first]["run"], rows[first]["hosts"]) == ("RUNNING", str(run), "host1"), output
    assert rows[first]["step"] > 0
    assert (rows[held]["state"], rows[held]["why"]) == ("PENDING", "it is held back: scontrol release JOB starts it")
    other = slurm.run(["sbatch", "--parsable", "--uid=nobody", "--hold", "--chdir=/", "--wrap=true"])[1].strip()
    for number, reason in ((other, f"job {other} is of the user nobody"), ("99999", "job 99999: neither Slurm nor")):
        status, output = submitted(slurm, tmp_path, "launch", "cancel", first, number)
        assert (status, reason in output) == (2, True), output
    status, output = submitted(slurm, tmp_path, "launch", "cancel", "--all", "--yes")
    assert status == 0, output
    assert f"{held}: cancelled before it started" in output
    step = newest(run).position.step
    assert re.search(rf"^{first}: ended after \d+ s; its newest checkpoint is of step {step}: ", output, re.M), output
    assert [slurm.state(job) for job in (first, held)] == ["CANCELLED"] * 2
    status, output = submitted(slurm, tmp_path, "launch", "cancel", first)
    assert (status, output) == (0, f"{first}: had ended before (CANCELLED)\n")
    slurm.run(["scancel", other])


@MATRIX
def test_scancel_and_requeue_concern_one_task_of_an_array(slurm, tmp_path):
    """The last task has the number of the whole array. Slurm's own scancel does not queue it again either."""
    words = ["python", "-m", "hvdtrain.mxnet_lenet", "--strategy", "single", "--epochs", "10000", "--log-every", "2"]
    options = ["launch", "sbatch", "--nodes", "1", "--ranks-per-node", "1", "--array", "0-1", "--submit"]
    job = submitted(slurm, tmp_path, *options, "--", *words)[1].split()[-1]
    runs = [tmp_path / "runs" / f"slurm-{job}_{task}" for task in (0, 1)]
    wait_for(lambda: all((run / "metrics.jsonl").exists() for run in runs), 60, lambda: log(tmp_path, f"{job}_0"))

    def states() -> list[str]:
        _, output = submitted(slurm, tmp_path, "launch", "status", "--json", f"{job}_0", f"{job}_1")
        return [row["state"] for row in json.loads(output)]

    slurm.run(["scancel", "--batch", "--signal=USR1", f"{job}_1"])
    wait_for(lambda: states() == ["RUNNING", "PENDING"], 30, states)
    slurm.run(["scancel", f"{job}_0"])
    wait_for(lambda: states() == ["CANCELLED", "RUNNING"], 60, states)
    wait_for(lambda: "resumed from" in (runs[1] / "logs" / "rank-0.log").read_text(), 60)
    assert submitted(slurm, tmp_path, "launch", "cancel", job)[0] == 0
    assert states() == ["CANCELLED"] * 2


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
