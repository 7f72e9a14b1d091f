"""Jobs with hvdtrain's launcher: their output, and what goes wrong with launchers and programs.

Needs processes: pipes, limits, signals and exit statuses of the launcher, of its agents and of their programs. Programs
have no framework: the launcher knows of none.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.doctor import unshared
from support.jobs import BIN, finish, run, start, succeed, wait_for

MATRIX = pytest.mark.matrix
HOST = os.uname().nodename


def launch(program: list[str], *options: str, by: str = "local", ranks: int = 2) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", by, "-n", str(ranks), *options, "--", *program]


def python(code: str) -> list[str]:
    return ["python", "-S", "-c", f"import os, sys, time\nrank = os.environ['RANK']\n{code}"]


FAILS = """
import resource
print("out of", rank, resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
print("err of", rank, file=sys.stderr, flush=True)
if rank == "0":
    open("printed", "w").close()
    time.sleep(60)
while not os.path.exists("printed"):  # the end of rank 1 ends rank 0
    time.sleep(0.01)
print("no end of line", end="", flush=True)
print("what was wrong", file=sys.stderr)
sys.exit(7)
"""


def test_output_is_labeled_and_written_to_files_and_a_failure_has_the_last_lines(tmp_path):
    """The launcher also raises its own limit of open files, up to the hard one; programs keep theirs."""
    command = launch(python(FAILS), "--output-dir", "logs of it")
    status, output = run(["bash", "-c", f"ulimit -Sn 40; exec {shlex.join(command)}"], tmp_path)
    assert status == 7
    labeled = {"[0] out of 0 40", "[0] err of 0", "[1] out of 1 40", "[1] err of 1", "[1] no end of line"}
    assert {line for line in output.splitlines() if line.startswith("[")} == labeled | {"[1] what was wrong"}
    report = re.escape(f"hvdtrain: rank 1 on {HOST} ended with exit status 7; ending the others; its last lines:")
    lines = "(  (out of 1 40|err of 1|what was wrong|no end of line)\n){4}"
    assert re.search(rf"^{report}\n{lines}", output, re.MULTILINE), output
    written = {path.name: path.read_text() for path in (tmp_path / "logs of it").iterdir()}
    assert written == {
        "rank-0.stdout": "out of 0 40\n", "rank-1.stdout": "out of 1 40\nno end of line",
        "rank-0.stderr": "err of 0\n", "rank-1.stderr": "err of 1\nwhat was wrong\n",
    }  # fmt: skip


IN_TURNS = """
print(rank, os.environ["TURN"], flush=True)
while os.environ["TURN"] == "first" and not os.path.exists("end"):
    time.sleep(0.01)
"""


def test_jobs_with_one_output_dir_write_to_files_of_their_own(tmp_path):
    """While one runs; a later one goes on in its files, as one that is queued again."""
    command = launch(python(IN_TURNS), "--output-dir", "logs")
    first = start(command, tmp_path, TURN="first")
    wait_for(lambda: (tmp_path / "logs" / "rank-1.stdout").exists(), 30)
    output = succeed(command, tmp_path, TURN="second")
    (own,) = (path for path in (tmp_path / "logs").iterdir() if path.is_dir())
    said = f"hvdtrain: another job writes to --output-dir logs; this one writes to logs/{own.name}\n"
    assert output.count(said) == 1
    (tmp_path / "end").touch()
    assert finish(first)[0] == 0
    succeed(command, tmp_path, TURN="third")
    for rank in (0, 1):
        assert (own / f"rank-{rank}.stdout").read_text() == f"{rank} second\n"
        assert (tmp_path / "logs" / f"rank-{rank}.stdout").read_text() == f"{rank} first\n{rank} third\n"


BY = ("local", "horovodrun", "mpirun")
NESTED = [
    pytest.param(*pair, marks=() if pair == ("local", "horovodrun") else MATRIX) for pair in itertools.product(BY, BY)
]


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_a_launcher_in_a_rank_starts_ranks_of_its_own(tmp_path, outer, inner):
    code = "from hvdtrain.system.rank_info import detect, local_size\nprint(*detect()[1:], local_size(), rank)"
    inside = launch(["python", "-c", f"import os\nrank = os.environ['RANK']\n{code}"], by=inner)
    output = succeed(launch(inside, by=outer, ranks=1), tmp_path)
    assert {line for line in output.splitlines() if line.startswith("[0] [")} == {
        f"[0] [{rank}] {rank} 2 {rank} 2 {rank}" for rank in (0, 1)
    }


IGNORES = "from signal import *; signal(SIGCHLD, SIG_IGN); import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(
    ("before", "ranks", "program", "expected", "said"),
    [
        (["bash", "-c", 'ulimit -n 64; exec "$@"', "-"], 24, ["true"], 2, "the limit is 64; raise the limit (ulimit"),
        ([], 2, ["no-such-program"], 2, "cannot start no-such-program (No such file or directory); check that"),
        # The kernel would otherwise forget how an agent has ended.
        (["python", "-S", "-c", IGNORES], 1, ["sh", "-c", "kill -9 $PPID; sleep 60"], 1, "rank 0"),
    ],
    ids=["few open files", "no program", "ignored SIGCHLD"],
)
def test_a_job_that_cannot_run_ends_with_one_line(tmp_path, before, ranks, program, expected, said):
    status, output = run([*before, *launch(program, ranks=ranks)], tmp_path)
    own = [line for line in output.splitlines() if "ranks share" not in line]
    assert (status, len(own), said in own[0]) == (expected, 1, True), output


@pytest.mark.parametrize(
    ("by", "starts", "status", "said"),
    [
        # One that does not belong to the ranks' MPI: each rank is started as rank 0 of 1.
        (
            "mpirun",
            'while :; do case $1 in *python*) exec "$@";; esac; shift; done',
            2,
            "mpirun started rank 0 of 1 on",
        ),
        ("mpirun", "echo 'MPI is broken' >&2; exit 3", 3, "before rank 0, 1 registered; it printed: MPI is broken"),
        ("horovodrun", "echo 'Exit code: 255' >&2; exit 1", 1, "Exit code: 255; raise MaxStartups in its sshd_config"),
    ],
    ids=["another MPI's", "failing", "failing by ssh"],
)
def test_a_launcher_that_does_not_start_the_ranks(tmp_path, by, starts, status, said):
    (tmp_path / by).write_text(f"#!/bin/sh\n{starts}\n")
    (tmp_path / by).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(BIN), os.environ["PATH"]])
    ranks = 11 if by == "horovodrun" else 2  # sshd takes ten at a time
    found, output = run([sys.executable, *launch(["true"], "-n", str(ranks), by=by)[1:]], tmp_path, PATH=path)
    assert (found, said in output) == (status, True), output


RANK_0 = """
while :; do case $1 in *python*) break;; esac; shift; done
export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0
"$@" & sleep 6"""
INCOMPLETE = [
    ("echo 'no shell of host2' >&2; exec sleep 60", "2", 2, "mpirun started no rank within 2 s; check what it printed"),
    # It ends rank 0, as it cannot start rank 1 on another host.
    (f"{RANK_0}; kill -9 $!; echo none >&2; exit 5", "60", 5, "before rank 1 registered; it printed: none"),
    # An agent is lost.
    pytest.param(f"{RANK_0}; kill -9 $!; sleep 60", "60", 1, "rank 0 on .* disconnected unexpectedly", marks=MATRIX),
]


@pytest.mark.parametrize(("mpirun", "limit", "status", "said"), INCOMPLETE)
def test_a_launcher_that_starts_no_rank_or_not_all(tmp_path, mpirun, limit, status, said):
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{mpirun}\n")
    (tmp_path / "mpirun").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(BIN), os.environ["PATH"]])
    command = launch(["true"], "--start-timeout", limit, by="mpirun")
    found, output = run([sys.executable, *command[1:]], tmp_path, PATH=path)
    assert found == status and re.search(f"^hvdtrain: .*{said}", output, re.MULTILINE), output


def test_dry_run_prints_a_command_line_that_works(tmp_path):
    program = ["sh", "-c", 'echo "it is"" on"']
    status, line = run(launch(program, "--dry-run", by="mpirun"), tmp_path)
    assert (status, "it is on" in line) == (0, False), line
    status, output = run(["bash", "-c", line.splitlines()[-1]], tmp_path)
    assert (status, output.count("it is on")) == (0, 2), output


# A full disk, a closed pipe or a reader that has stopped neither ends a healthy job nor keeps a failing one alive.

LINES = """
for number in range(20):
    print("line", number, "of", rank, flush=True)
    time.sleep(0.01)
open(f"well-{rank}", "w").close()
"""
FULL = "hvdtrain: standard output cannot be written (No space left on device)"


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("> /dev/full", FULL),
        ("| head -1 >&2", "hvdtrain: standard output cannot be written (Broken pipe); the job continues without it"),
        pytest.param("2>&1 > /dev/full | cat >&2", FULL, marks=MATRIX),
        pytest.param("> /dev/full 2>&1", "", marks=MATRIX),
        pytest.param("2>&-", "", marks=MATRIX),
        pytest.param("2> /dev/full", "", marks=MATRIX),
    ],
)
def test_output_that_nobody_takes_does_not_end_the_job(tmp_path, redirection, said):
    line = f"{shlex.join(launch(python(LINES)))} {redirection}; exit ${{PIPESTATUS[0]}}"
    output = succeed(["bash", "-c", line], tmp_path, timeout_s=60)
    assert sorted(path.name for path in tmp_path.glob("well-*")) == ["well-0", "well-1"]
    assert (output.count("cannot be written"), said in output) == (bool(said), True)


def test_output_files_that_cannot_be_written(tmp_path):
    """A named pipe that nobody reads, and a full disk: the job runs, and its signals are handled."""
    logs = tmp_path / "logs"
    logs.mkdir()
    os.mkfifo(logs / "rank-0.stdout")
    (logs / "rank-1.stdout").symlink_to("/dev/full")
    code = "for _ in range(9): print('begun', flush=True)\ntime.sleep(60)"
    process = start(launch(python(code), "--output-dir", "logs"), tmp_path)
    lines = []
    while sum("begun" in line for line in lines) < 18:
        lines.append(process.stdout.readline())
    process.terminate()
    lines.append(process.stdout.read())  # `finish` would not see what `readline` has read ahead
    status, output = finish(process, 20)
    assert status == 128 + signal.SIGTERM
    assert (logs / "rank-1.stderr").exists()
    output = "".join(lines) + output
    assert output.count("--output-dir logs cannot be written (No space left on device); the job continues") == 1
    assert output.count("logs/rank-0.stdout cannot be written (No such device or address)") == 1


CHATTY = """
if rank == "1":
    open("pid", "w").write(f"{os.getpid()} ")
    time.sleep(600)
while True:
    print("x" * 9999, flush=True)
"""
IMPATIENT = """
import sys
from hvdtrain.__main__ import main
from hvdtrain.jobs import console
console.QUEUE_BYTES, console.STALLED_S, console.FLUSH_S = 100_000, 0.3, 0.3
main(sys.argv[1:])
"""


@pytest.mark.parametrize("how", ["SIGKILL to a rank", pytest.param("SIGTERM to the launcher", marks=MATRIX)])
def test_a_job_ends_although_nobody_reads_its_output(tmp_path, how):
    """As on a terminal that was stopped with Ctrl-S: a rank prints without end, then another dies."""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", IMPATIENT, *launch(python(CHATTY))[3:]]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=writing, stderr=writing, env=environment)
    os.close(writing)
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text().endswith(" "), 30)
    time.sleep(0.5)  # the pipe and the queue are full
    target, number = (int(pid.read_text()), signal.SIGKILL) if "rank" in how else (process.pid, signal.SIGTERM)
    os.kill(target, number)
    assert process.wait(20) == 128 + number
    os.close(reading)


def test_a_command_line_with_an_error_is_explained_once(tmp_path):
    """All ranks find it, in any order."""
    program = ["python", "-m", "hvdtrain.torch_lenet", "--epochz", "3"]
    status, output = run(launch(program, "--output-dir", "logs"), tmp_path)
    assert (status, output.count("unrecognized arguments: --epochz")) == (2, 1), output
    written = [Path(path).read_text() for path in tmp_path.glob("logs/rank-*.stderr")]
    assert any("unrecognized arguments: --epochz" in text for text in written)


def test_what_prints_without_end_after_its_program_does_not_hold_up_the_job(tmp_path):
    """The agent reads it for a second, and ends it."""
    command = shlex.join(launch(["sh", "-c", "yes & exit 3"], ranks=1))
    status, _ = run(["bash", "-c", f"{command} > /dev/null"], tmp_path, timeout_s=20)
    assert status == 3


LONG = """
for number in range(200_000):
    print(number, rank, "x" * 50)
open("well-" + rank, "w").close()
"""
SUSPENDED_S = 18
"""Longer than the kernel waits for acknowledgments of a host that may be lost."""


@MATRIX
def test_a_launcher_that_is_suspended_gets_all_output_afterwards(tmp_path):
    """Ctrl-Z, or a suspended batch job: the ranks that print wait for it."""
    process = start(launch(python(LONG)), tmp_path)
    wait_for(lambda: process.stdout.readline().startswith("["), 30)
    process.send_signal(signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    assert not list(tmp_path.glob("well-*"))
    process.send_signal(signal.SIGCONT)
    status, output = finish(process, 120)
    assert status == 0, output[-2000:]
    for rank in (0, 1):
        assert f"\n[{rank}] 199999 {rank} x" in output


# The rank whose own error is the first cause.

RAISES = """
if rank == "0":
    raise ConnectionResetError(104, "Connection reset by peer")
time.sleep(0.5)
raise ValueError("no such label")
"""
START = {
    "torch": "import horovod.torch as hvd, torch; hvd.init(); ones = torch.ones(1000)",
    "mxnet": "import horovod.mxnet as hvd, mxnet; hvd.init(); ones = mxnet.nd.ones(1000)",
    "tensorflow": "import horovod.tensorflow as hvd, tensorflow; hvd.init(); ones = tensorflow.ones(1000)",
    "torch.distributed": (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo'); ones = torch.ones(1000)"
    ),
}
REDUCE = {"mxnet": "hvd.allreduce(ones).wait_to_read()", "torch.distributed": "dist.all_reduce(ones)"}


def reducing(kind: str) -> list[str]:
    """A program of a user's own whose rank 1 raises, while the other rank waits in a collective."""
    rank = "dist.get_rank()" if kind == "torch.distributed" else "hvd.rank()"
    raising = f"    if step == 3 and {rank} == 1: raise ValueError('no such label')"
    reduce = REDUCE.get(kind, "hvd.allreduce(ones, name='ones')")
    return ["python", "-c", "\n".join([START[kind], "for step in range(10**9):", raising, f"    {reduce}"])]


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("no framework", "local"),
        *(pytest.param(kind, "local", marks=MATRIX) for kind in START),
        *(pytest.param("torch", by, marks=MATRIX) for by in ("horovodrun", "mpirun")),
    ],
)
def test_the_rank_that_raises_is_named(tmp_path, kind, by):
    """Although the other ranks' collectives fail first."""
    status, output = run(launch(reducing(kind) if kind in START else python(RAISES), by=by), tmp_path)
    assert status != 0
    report = output.partition("hvdtrain: rank ")[2]
    assert report.startswith("1 on "), output
    assert "  ValueError: no such label\n" in report.replace("[rank1]: ", "")


OWN = {
    "MY_ROWS": "100",
    "HF_HOME": "/a b",
    "WANDB_PROJECT": "it's $HOME",
    "WANDB_API_KEY": "correct-horse",
    "a;touch hit": "1",
}
SHOW = """
import json, os, pathlib, sys
lines = b"".join(path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.exists())
own = json.loads(pathlib.Path("own").read_text())
of_outer_job = os.environ.keys() & {"HVDTRAIN_MEMBERSHIP", "HVDTRAIN_REPLACES"}
shown = [name for name, value in own.items() if f"{name}={value}".encode() in lines or f"{name}='".encode() in lines]
print({name: os.environ.get(name) for name in own} == own, shown, *of_outer_job)
"""


@pytest.mark.parametrize("by", ["horovodrun", *(pytest.param(by, marks=MATRIX) for by in ("local", "mpirun"))])
def test_ranks_on_this_host_have_the_variables_of_its_shell(tmp_path, by):
    """None shows on a command line, of which a shell would take the name of one apart.

    Those of a job that survives are left out, in which a program launches this one.
    """
    (tmp_path / "own").write_text(json.dumps(OWN))
    (tmp_path / "show.py").write_text(SHOW)
    outer = {"HVDTRAIN_MEMBERSHIP": "1", "HVDTRAIN_REPLACES": "1"}
    status, output = run(launch(["python", "show.py"], by=by, ranks=2), tmp_path, **outer, **OWN)
    assert (status, sorted(output.splitlines()[-2:])) == (0, ["[0] True []", "[1] True []"]), output
    assert "--env" not in output and not (tmp_path / "hit").exists()


@pytest.mark.parametrize("by", ["--gloo", "--mpi"])
def test_horovodrun_starts_ranks_where_no_name_resolves_and_no_home_can_be_written(by, tmp_path):
    """As in a minimal chroot."""
    system = unshared("-mu", "hostname no-such-host-here; mount --bind /dev/null /etc/hosts")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*system, "horovodrun", by, "-np", "2", "sh", "-c", "echo started"]
    assert succeed(command, tmp_path, HOME="/dev/null", **root).count("started") == 2


@pytest.mark.skipif(not (BIN / "hvdtrain-no-ssh").exists(), reason="this Open MPI is not the one that set-up installs")
def test_open_mpi_starts_ranks_on_this_host_where_there_is_no_ssh(tmp_path):
    """It starts nothing unless it finds a program that starts it on other hosts."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    path = {"PATH": f"{BIN}:{tmp_path / 'bin'}", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for command in (["mpirun", "--oversubscribe"], ["horovodrun", "--mpi"]):
        assert succeed([*command, "-np", "2", "sh", "-c", "echo started"], tmp_path, **path).count("started") == 2
    status, said = run(["mpirun", "-H", "other:2", "-np", "2", "true"], tmp_path, **path)
    assert status != 0 and said.startswith(
        "mpirun: neither ssh nor rsh is here to start ranks on other: apt-get install"
    )
