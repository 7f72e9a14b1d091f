"""Other hosts by ssh, with a program in place of ssh that answers as the real one does."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import wait_for
from support.untrusted import PASSWORD

from hvdtrain.errors import UserError
from hvdtrain.jobs import hosts
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job, inherited, passed_on
from hvdtrain.jobs.launchers import sent
from hvdtrain.system.stacks import versions_here


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Puts a program in the place of ssh: what a shell runs."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def put(script):
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ssh").chmod(0o755)

    return put


def test_hosts_that_cannot_be_reached_are_named(ssh):
    """With an ssh that answers as the real one does."""
    ssh(
        "for host; do case $host in node*) break;; esac; done\n"
        "case $host in node1) echo 'ada@node1: Permission denied (publickey).' >&2; exit 255;;\n"
        "node2) echo 'bash: python: No such file or directory' >&2; exit 127;;\n"
        '*) echo \'{"python": "2.7"}\';; esac'
    )
    with pytest.raises(UserError) as raised:
        hosts.check_hosts(["node1", "node2", "node3"])
    text = str(raised.value)
    assert "node1: no ssh without a password (ada@node1: Permission denied (publickey).); ssh-keygen" in text
    assert "node2: " in text and "does not run there" in text
    assert "node3: it differs from this host: python 2.7 against " in text


def test_other_hosts_are_those_with_another_name_than_this_one(monkeypatch):
    """Slurm's name of the node counts as this host's name."""
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    names = ["localhost", "127.0.0.1", os.uname().nodename, "node1.cluster", "node9"]
    assert hosts.other_hosts([Host(name, 1) for name in names]) == ["node1.cluster", "node9"]
    monkeypatch.setenv("SLURMD_NODENAME", "node9")
    assert hosts.other_hosts([Host(name, 1) for name in ("localhost", "node1", "node9")]) == ["node1"]


def test_remedies_for_ssh():
    for error, remedy in (
        ("Permission denied", "ssh-copy-id node1; or name a key as IdentityFile in ~/.ssh/config"),
        ("Host key verification failed", "ssh-keyscan node1 >> "),
        ("Connection refused", "ssh -v node1 true (another port: Port in ~/.ssh/config)"),
    ):
        assert remedy in hosts.ssh_remedy("node1", error)


SSH = """
# Logs its command line, and runs the command on this host.
echo "$@" >>{log}
while [ "$1" != -- ]; do shift; done
shift
[ "$1" != node2 ] || {node2}
shift
exec sh -c "$*"
"""


@pytest.mark.parametrize(
    ("node2", "said"), [("exit 255", "no message"), ("{ echo no >&2; exit 255; }", "no"), ("exec yes", "y")]
)
def test_credentials_reach_hosts_without_appearing_on_a_command_line(ssh, tmp_path, monkeypatch, node2, said):
    """node2 cannot be reached, or prints without end."""
    ssh(SSH.format(log=tmp_path / "log", node2=node2))
    variables = {"HVDTRAIN_TOKEN": PASSWORD, "HVDTRAIN_MIRROR": f"https://ada:{PASSWORD}@\ngrün"}
    path = hosts.distribute_variables(["node1"], variables)
    try:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        environment = {hosts.VARIABLES_FILE: path, "PATH": "/bin"}
        hosts.receive_variables(environment)
        assert environment == {**variables, "PATH": "/bin"}
    finally:
        hosts.remove_variables(path)
    assert not os.path.exists(path)
    monkeypatch.setattr(hosts.secrets, "token_hex", lambda _: path.removeprefix("/tmp/hvdtrain-"))
    with pytest.raises(UserError, match=rf"node2: variables with .* cannot be written to /tmp \({said}\)"):
        hosts.distribute_variables(["node1", "node2"], variables)
    assert not os.path.exists(path)
    log = (tmp_path / "log").read_text()
    assert "node1" in log and PASSWORD not in log
    # A terminal there, as RequestTTY in ~/.ssh/config asks for, would print what is sent.
    assert all(line.startswith("-T ") for line in log.splitlines())


LAUNCHES = """
import os, signal, sys
from hvdtrain.jobs import hosts
print(hosts.distribute_variables(["node1"], {{"HVDTRAIN_TOKEN": "secret"}}), flush=True)
{end}
"""


@pytest.mark.parametrize(("end", "status"), [("os.kill(os.getpid(), 9)", -9), ("os.killpg(0, 9)", -9), ("", 0)])
def test_no_credentials_stay_where_the_launcher_is_killed(ssh, tmp_path, end, status):
    """Needs processes: one that is killed, and those that it leaves."""
    ssh(SSH.format(log=tmp_path / "log", node2="exit 255"))
    code = LAUNCHES.format(end=end)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert (done.returncode, done.stdout.startswith("/tmp/hvdtrain-")) == (status, True)
    wait_for(lambda: not os.path.exists(done.stdout.strip()), 10)


ODD = ("", "Welcome!\\n", "5\\n", '{"torch": 1}\\n', "\\377\\033[31m\\n", "[" * 9999)


@pytest.mark.parametrize("script", [*(f"printf '{text}'" for text in ODD), "exec yes Welcome"])
def test_a_host_that_runs_something_else_is_named(ssh, script):
    """As with a forced command in authorized_keys; one that prints without end, at once."""
    ssh(script)
    with pytest.raises(UserError, match=r"^node1: ssh does not run what it is asked to: it printed") as raised:
        hosts.check_hosts(["node1"])
    assert str(raised.value).isprintable() and len(str(raised.value)) < 300
    problem = hosts.inspect(["node1"])["node1"]  # as the doctor and restarts do
    assert problem.reason and problem.remedy


def test_a_host_that_does_not_answer_does_not_keep_the_launcher(ssh):
    """One that was asked to end meanwhile. Needs a process, which waits at its end for threads of other kinds."""
    ssh("exec sleep 60")
    code = "import time; from hvdtrain.jobs import hosts; from hvdtrain.system.processes import in_background; "
    code += "in_background(hosts.inspect, ['node1']); time.sleep(1)"
    subprocess.run([sys.executable, "-c", code], timeout=20, check=True)


def test_ssh_may_add_to_a_large_file_of_known_hosts(tmp_path):
    known = tmp_path / "known_hosts"
    known.write_bytes(bytes(hosts.OUTPUT_BYTES))
    assert hosts._run_limited(["sh", "-c", f"echo key >> '{known}'; echo out; echo err >&2"]) == (0, "out\n", "err\n")
    assert known.stat().st_size > hosts.OUTPUT_BYTES


SAID = [
    ("ssh: Could not resolve hostname node1: Name or service not known", True),
    ("ssh: connect to host node1 port 22: Connection refused", True),
    ("ssh: connect to host node1 port 22: Connection timed out", True),
    ("ssh: connect to host node1 port 22: No route to host", True),
    ("kex_exchange_identification: Connection closed by remote host", True),
    ("ada@node1: Permission denied (publickey).", False),
    ("Host key verification failed.", False),
]
"""Of ssh, and whether it may only be too early."""


@pytest.mark.parametrize(("said", "is_early"), SAID)
def test_hosts_that_start_late_are_awaited(ssh, tmp_path, monkeypatch, capsys, said, is_early):
    """As in Kubernetes, where names resolve some seconds after the launcher has started."""
    (tmp_path / "versions").write_text(json.dumps(versions_here()))
    count = f"echo >>'{tmp_path}/asked'; [ $(wc -l <'{tmp_path}/asked') -gt 3 ] && exec cat '{tmp_path}/versions'"
    ssh(f"{count}\necho '{said}' >&2; exit 255")
    monkeypatch.setattr(hosts.time, "sleep", lambda _: None)
    if is_early:
        hosts.check_hosts(["node1"], wait_s=60)
    else:
        with pytest.raises(UserError, match="no ssh without a password"):
            hosts.check_hosts(["node1"], wait_s=60)
    asked = (tmp_path / "asked").read_text().count("\n")
    waits = f"hvdtrain: waiting up to 60 s for node1: no ssh without a password ({said})\n"
    assert (asked, capsys.readouterr().err) == ((4, waits) if is_early else (1, ""))


def test_hosts_are_not_awaited_for_ever(ssh):
    ssh("echo 'ssh: Could not resolve hostname node1: Name or service not known' >&2; exit 255")
    with pytest.raises(UserError, match=r"node1: no ssh .*; add node1 and its address to /etc/hosts, or correct the n"):
        hosts.check_hosts(["node1"], wait_s=0.1)


SHELLS = {
    "bash": 'exec bash -c "$command"',
    # It prints that it does not know the assignment, runs nothing, and ends with 0.
    "fish": 'case $command in *A=1*) echo "fish: Unsupported use of =" >&2; exit 0;; esac; exec bash -c "$command"',
    "tcsh": 'case $command in *A=1*|*"2>&1"*) echo "A=1: not found" >&2; exit 1;; esac; exec bash -c "$command"',
}
UNUSABLE = {("mpirun", "fish"), ("mpirun", "tcsh"), ("horovodrun", "tcsh")}
"""As real ones were seen to do: mpirun waits for ever, and horovodrun ends, and with it a rank of another host."""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "survive"])
def test_login_shells_that_a_launcher_cannot_use_are_named(ssh, monkeypatch, launcher, shell):
    """horovodrun and mpirun send commands of sh to the login shells of other hosts."""
    monkeypatch.setenv("SHELL", "/bin/bash")
    by = {"launcher": "horovodrun", "survives": True} if launcher == "survive" else {"launcher": launcher}
    sends = sent(Job(("true",), 2, mpi_prefix="/opt/venv", **by))
    ssh(f'while [ "$1" != -- ]; do shift; done; shift 2; command="$*"\n{SHELLS[shell]}')
    if (launcher, shell) in UNUSABLE:
        with pytest.raises(UserError, match=r"node1: its login shell does not run .*; choose one like sh, on node1"):
            hosts.check_hosts(["node1"], sends)
    else:
        hosts.check_hosts(["node1"], sends)


def test_mpirun_takes_other_shells_for_those_of_this_host(monkeypatch):
    """Where all have tcsh, it sends what tcsh understands; a system's Open MPI sets no variables there."""
    monkeypatch.setenv("SHELL", "/usr/bin/tcsh")
    assert not sent(Job(("true",), 2, mpi_prefix="/opt/venv", launcher="mpirun"))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert sent(Job(("true",), 2, mpi_prefix="/opt/venv", launcher="mpirun"))
    assert not sent(Job(("true",), 2, launcher="mpirun"))


def test_a_shell_may_print_more_than_the_versions(ssh, tmp_path):
    (tmp_path / "versions").write_text(json.dumps(versions_here()))
    ssh(f"echo Welcome\ncat '{tmp_path}/versions'\nprintf '\\nBye \\377'")
    hosts.check_hosts(["node1"])


def test_variables_with_secrets_are_not_passed_on():
    environment = {"PATH": "/bin", "HVDTRAIN_DATA": "/data", "SLURM_JOB_ID": "1", "OMP_NUM_THREADS": "1", "AWS": "x"}
    environment |= {"http_proxy": "http://proxy:1", "NO_PROXY": "a", "REQUESTS_CA_BUNDLE": "/ca", "LC_ALL": "C.UTF-8"}
    hidden = ("SLURM_JWT", "HVDTRAIN_TOKEN", "TORCH_API_KEY", "NCCL_PASSWORD", "TF_Secret_x")
    got = passed_on({**environment, **dict.fromkeys(hidden, PASSWORD)})
    assert got.keys() == environment.keys() - {"AWS"}


@pytest.mark.parametrize(
    ("launcher", "options", "slurm", "left_out"),
    [
        ("local", {}, {}, False),
        ("mpirun", {}, {}, False),
        ("horovodrun", {"hosts": (Host("localhost", 2),)}, {}, False),
        ("local", {}, {"SLURM_JOB_ID": "1"}, False),
        ("horovodrun", {"hosts": (Host("localhost", 1), Host("node2", 1))}, {}, True),
        ("horovodrun", {"hosts": (Host("localhost", 2),), "hostfile": Path("hosts")}, {}, True),
        ("mpirun", {}, {"SLURM_JOB_ID": "1"}, True),
        ("srun", {}, {}, True),
    ],
)
def test_variables_go_everywhere_on_this_host_and_are_named_where_others_take_part(launcher, options, slurm, left_out):
    own = {"MY_ROWS": "1", "WANDB_API_KEY": "x", "WANDB_MODE": "offline", "_": "x", "LS_COLORS": "x", "XDG_SEAT": "1"}
    own["container"] = "podman"
    environment = {"PATH": "/bin", **own, **slurm}
    job = Job(("true",), 2, environment={"WANDB_MODE": "offline"}, launcher=launcher, **options)
    passed, names = inherited(job, environment)
    assert passed == ({"PATH": "/bin", **slurm} if left_out else environment)
    assert names == (["MY_ROWS", "WANDB_API_KEY"] if left_out else [])
