"""Jobs that really run with hvdtrain's launcher: output, failures, and launchers that go wrong."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from support.jobs import BIN, ROOT, run

PROGRAM = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
print("out of", rank, flush=True)
print("err of", rank, file=sys.stderr, flush=True)
"""


def local(code: str, *options: str, ranks: int = 2) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", "local", "-n", str(ranks), *options, "--", "python", "-c", code]


def test_output_is_labeled_with_the_rank_and_written_to_files(tmp_path):
    status, output = run(local(PROGRAM + "print('no end of line', end='')", "--output-dir", "logs of it"), tmp_path)
    assert status == 0, output
    assert sorted(line for line in output.splitlines() if line.startswith("[")) == sorted(
        f"[{rank}] {text}" for rank in (0, 1) for text in (f"out of {rank}", f"err of {rank}", "no end of line")
    )
    for rank in (0, 1):
        assert (tmp_path / "logs of it" / f"rank-{rank}.stdout").read_text() == f"out of {rank}\nno end of line"
        assert (tmp_path / "logs of it" / f"rank-{rank}.stderr").read_text() == f"err of {rank}\n"


def test_a_failure_is_reported_with_the_rank_s_last_lines(tmp_path):
    code = PROGRAM + "time.sleep(0 if rank else 60)\nprint('what was wrong', file=sys.stderr)\nsys.exit(7)"
    status, output = run(local(code), tmp_path)
    assert status == 7
    host = os.uname().nodename
    report = re.escape(f"hvdtrain: rank 1 on {host} ended with exit status 7; ending the others; its last lines:")
    assert re.search(rf"^{report}\n(  (out|err) of 1\n){{2}}  what was wrong\n", output, re.MULTILINE), output


def test_fewer_open_files_than_the_ranks_need(tmp_path):
    status, output = run(["bash", "-c", f"ulimit -n 64; exec {shlex.join(local('', ranks=24))}"], tmp_path)
    assert status == 2, output
    assert "open files are needed, but the limit is 64; raise the limit (ulimit -n " in output
    assert len(output.splitlines()) < 4, output  # with the warning that there are fewer cores than ranks


def test_the_launcher_raises_its_own_limit_of_open_files(tmp_path):
    """Up to the hard one; programs keep theirs."""
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    command = local(code, "--output-dir", "logs", ranks=8)
    status, output = run(["bash", "-c", f"ulimit -Sn 64; exec {shlex.join(command)}"], tmp_path)
    assert status == 0, output
    assert sum(line.endswith("] 64") for line in output.splitlines()) == 8, output


def test_signals_of_children_that_were_ignored_by_who_started_the_launcher(tmp_path):
    """The kernel would otherwise forget how an agent has ended."""
    killed = ["launch", "local", "-n", "1", "--", "sh", "-c", "kill -9 $PPID; sleep 60"]
    ignore = "import os, sys; from signal import *; signal(SIGCHLD, SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    status, output = run(["python", "-c", ignore, "python", "-m", "hvdtrain", *killed], tmp_path)
    assert (status, len(output.splitlines())) == (1, 1), output


def test_a_program_that_does_not_exist(tmp_path):
    status, output = run(["python", "-m", "hvdtrain", "launch", "local", "-n", "2", "--", "no-such-program"], tmp_path)
    assert status == 2, output
    assert "cannot start no-such-program (No such file or directory); check that it is on PATH" in output
    assert "Traceback" not in output


def test_a_launcher_of_another_mpi(tmp_path):
    """An mpirun that does not belong to the ranks' MPI: each rank is started as rank 0 of 1."""
    fake = tmp_path / "mpirun"
    fake.write_text('#!/bin/sh\nwhile :; do case $1 in *python*) exec "$@";; esac; shift; done\n')
    fake.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(BIN), os.environ["PATH"]])
    words = ["python", "-m", "hvdtrain", "launch", "mpirun", "-n", "2", "--", "true"]
    process = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 2
    assert "mpirun started rank 0 of 1 on" in process.stderr
    assert ", but 2 ranks were requested" in process.stderr


@pytest.mark.matrix
@pytest.mark.parametrize(("by", "status"), [("horovodrun", 2), ("mpirun", 0)])
def test_one_host_under_two_names(tmp_path, by, status):
    """horovodrun takes them for two hosts, and gives both ranks the local rank 0; Open MPI knows that they are one."""
    code = "import os; print('local', os.environ['LOCAL_RANK'])"
    hosts = ["-n", "2", "-H", "localhost:1,127.0.0.1:1"]
    command = ["python", "-m", "hvdtrain", "launch", by, *hosts, "--", "python", "-c", code]
    found, output = run(command, tmp_path, timeout_s=60)
    assert found == status, output
    assert {line[-1] for line in output.splitlines() if "] local " in line} == (set() if status else {"0", "1"}), output


def test_a_launcher_that_fails(tmp_path):
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho 'MPI is broken' >&2\nexit 3\n")
    fake.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(BIN), os.environ["PATH"]])
    words = [sys.executable, "-m", "hvdtrain", "launch", "mpirun", "-n", "2", "--", "true"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "mpirun ended with exit status 3 before rank 0, 1 registered; it printed: MPI is broken" in done.stderr


@pytest.mark.needs("torch")
def test_horovod_runs_without_horovodrun(tmp_path):
    code = (
        "import horovod.torch as hvd, torch; hvd.init(); one = torch.ones(1) * (hvd.rank() + 1); "
        "print('sum', hvd.rank(), hvd.size(), hvd.local_size(), hvd.allreduce(one, op=hvd.Sum)); "
        "hvd.shutdown(); hvd.init(); print('again', hvd.size()); hvd.shutdown()"
    )
    status, output = run(local(code), tmp_path)
    assert status == 0, output
    assert sorted(line for line in output.splitlines() if "sum" in line) == [
        f"[{rank}] sum {rank} 2 2 tensor([3.])" for rank in (0, 1)
    ]
    assert output.count("again 2") == 2


def test_dry_run_prints_a_command_line_that_works(tmp_path):
    program = ["python", "-c", "print('it is' + ' on')"]
    words = ["python", "-m", "hvdtrain", "launch", "mpirun", "-n", "2", "--dry-run", "--", *program]
    status, line = run(words, tmp_path)
    assert (status, "it is on" in line) == (0, False), line
    status, output = run(["bash", "-c", line.splitlines()[-1]], tmp_path)
    assert (status, output.count("it is on")) == (0, 2), output
