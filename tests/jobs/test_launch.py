"""The launcher: the words it makes, and jobs that really run, fail, hang and are ended."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.jobs import BIN, ROOT, run, running, wait_for

from hvdtrain.cli import launch
from hvdtrain.errors import UserError
from hvdtrain.launch import gloo, hosts, job, protocol, sbatch
from hvdtrain.launch.job import Host
from hvdtrain.system import rank_info, slurm
from hvdtrain.system.proof import proof

GOLDEN = ROOT / "tests" / "unit" / "golden"
ODD = ["python", "my train.py", "--name", 'it\'s "odd"; $HOME `x` *', "line\nbreak", "grün", ""]
ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/bin",
    "HOME": "/home/ada",
    "PYTHONPATH": "/srv/my code",
    "HOROVOD_CYCLE_TIME": "2",
    "AWS_SECRET_ACCESS_KEY": "stays here",
}
JOBS = {
    "local": ["local", "-n", "2"],
    "local-odd": ["local", "-n", "1", "--env", "WORD=a b\nc"],
    "local-crowded": ["local", "-n", "8"],
    "horovodrun": ["horovodrun", "-n", "2"],
    "horovodrun-hosts": ["horovodrun", "-np", "4", "-H", "node1:2,node2:2", "--interface", "eth0"],
    "horovodrun-mpi": ["horovodrun", "--mpi", "-n", "4", "-H", "node1:2,node2:2"],
    "horovodrun-settings": [
        *("horovodrun", "-n", "2", "--timeline", "/tmp/a b.json", "--timeline-mark-cycles", "--autotune"),
        *("--fusion-threshold-mb", "32", "--cycle-time-ms", "0.5", "--no-stall-check", "--log-level", "INFO"),
    ],
    "mpirun": ["mpirun", "-n", "2"],
    "mpirun-hosts": ["mpirun", "-n", "3", "-H", "node1:2,node2:2", "--env", "EXTRA=1"],
    "mpirun-interface": ["mpirun", "-n", "4", "-H", "node1:2,node2:2", "--interface", "ib0"],
    "mpirun-oversubscribed": ["mpirun", "-n", "8", "-H", "node1:2,node2:2", "--oversubscribe"],
    "srun-gloo": ["srun", "-n", "4", "--nodes", "2"],
    "srun-pmix": ["srun", "-n", "4", "--mpi", "pmix", "--interface", "eth0"],
    "srun-container": ["srun", "-n", "4", "--container", "/images/hvd train.sif"],
    "srun-pyxis": ["srun", "-n", "4", "--container", "hvdtrain:1"],
}
BATCHES = {
    "sbatch": ["--nodes", "2", "--ranks-per-node", "4"],
    "sbatch-all": [
        *("--nodes", "2", "--ranks-per-node", "4", "--gpus-per-node", "a100:4", "--cpus-per-rank", "8", "--mem", "64G"),
        *("--partition", "gpu", "--account", "physics", "--time", "1-02:00:00", "--mpi", "pmix", "--interface", "ib0"),
        *(
            "--container",
            "/images/hvd train.sif",
            "--env",
            "NCCL_DEBUG=a b",
            "--autotune",
            "--output-dir",
            "logs of it",
        ),
    ],
    "sbatch-mpirun": ["--nodes", "2", "--ranks-per-node", "2", "--via", "mpirun", "--no-requeue"],
    "sbatch-horovodrun": ["--nodes", "2", "--ranks-per-node", "2", "--via", "horovodrun"],
}


def recorded(name: str, text: str) -> None:
    """The text is as it was when somebody read it; HVDTRAIN_RECORD=1 writes it anew, to be read again."""
    path = GOLDEN / name
    if os.environ.get("HVDTRAIN_RECORD"):
        path.write_text(text)
    assert text == path.read_text(), f"{name}: HVDTRAIN_RECORD=1 writes it anew"


@pytest.mark.parametrize("name", JOBS)
def test_words_are_as_recorded(name, monkeypatch):
    if name == "horovodrun-mpi" and " " in sys.executable:
        pytest.skip("horovodrun without --interface refuses a Python in a folder with a space")
    monkeypatch.setattr(os, "getcwd", lambda: "/srv/my job")
    program = ODD if "odd" in name else ["python", "-m", "hvdtrain.mxnet_lenet"]
    options = launch.parse([*JOBS[name], "--", *program])
    described = replace(launch.describe(options), cores=4, as_root="mpi" in name, mpi_prefix="/opt/venv")
    starts = launch.start(options.launcher, described, ENVIRONMENT)
    lines = [one.pasteable().replace(shlex.quote(sys.executable), "python") for one in starts]
    recorded(f"{name}.txt", "\n".join(lines) + "\n")
    for one in starts:  # what a shell makes of the line is what would be started
        assigned = ["env", *(f"{key}={value}" for key, value in sorted(one.set.items()))] if one.set else []
        assert shlex.split(one.pasteable()) == [*assigned, *one.words]
        assert one.words[-len(program) :] == program
        assert "AWS_SECRET_ACCESS_KEY" not in " ".join(one.words)


def test_open_mpi_in_a_folder_with_a_space(monkeypatch):
    """Its own words for ssh do not quote it: mpirun would start on no other host, and say why in forty lines."""
    options = launch.parse(["mpirun", "-n", "2", "-H", "node1:1,node2:1", "--", "true"])
    described = replace(launch.describe(options), mpi_prefix="/opt/my venv")
    with pytest.raises(UserError, match="cannot start itself on other hosts in a folder with a space"):
        launch.start("mpirun", described, ENVIRONMENT)
    assert launch.start("mpirun", replace(described, hosts=()), ENVIRONMENT)
    with pytest.raises(UserError, match="name the interface by --interface"):
        launch.words.horovodrun(described, ENVIRONMENT, python="/opt/my venv/bin/python")


@pytest.mark.parametrize("name", BATCHES)
def test_batch_scripts_are_as_recorded_and_pass_shellcheck(name, monkeypatch):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    options = launch.parse(["sbatch", *BATCHES[name], "--", "python", "-m", "hvdtrain.torch_lenet", "--epochs", "3"])
    text = sbatch.describe(options).script()
    recorded(f"{name}.sbatch", text)
    checked = subprocess.run([BIN / "shellcheck", "-s", "bash", "-"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_odd_words_reach_the_program_of_a_batch_script(tmp_path):
    """The script is run by bash as Slurm would run it, with a launcher that only shows what it got."""
    show = [sys.executable, "-c", "import sys; print(sys.argv[1:])", *ODD]
    options = launch.parse(["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--", *show])
    text = sbatch.describe(options).script()
    line = next(line for line in text.splitlines() if line.startswith("program=("))
    end = text.index("\n\n# hvdtrain's launcher")
    code = text[text.index(line) : end] + '\n"${program[@]}"\n'
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{ODD}\n"


def test_the_batch_script_of_the_launch_folder_is_recorded_output():
    made = (GOLDEN / "sbatch.sbatch").read_text()
    assert (ROOT / "launch" / "slurm.sbatch").read_text() == made


# Words that are none.


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["local", "-n", "0", "--", "true"], "-n 0: give 1 or more"),
        (["local", "-n", "2"], "no program to start"),
        (["mpirun", "-n", "5", "-H", "a:2,b:2", "--", "true"], "5 ranks, but 4 slot(s) (a:2, b:2): name more slots"),
        (["mpirun", "-n", "2", "-H", "a:2,a:1", "--", "true"], "host a is named twice"),
        (["mpirun", "-n", "2", "-H", "a:x", "--", "true"], "'a:x' is no host"),
        (["mpirun", "-n", "2", "--hosts=-oProxyCommand=x", "--", "true"], "is no host"),
        (["mpirun", "-n", "2", "-H", "a", "--hostfile", "f", "--", "true"], "--hosts and --hostfile both"),
        (["mpirun", "-n", "2", "--hostfile", "/no/such", "--", "true"], "--hostfile /no/such: it cannot be read"),
        (["local", "-n", "1", "--env", "A B", "--", "true"], "is no name of a variable"),
        (["local", "-n", "1", "--env", "NOT_SET_HERE", "--", "true"], "it is not set here"),
        (["local", "-n", "1", "--interface", "none0", "--", "true"], "no such interface is up here"),
        (["local", "-n", "1", "--time-limit", "soon", "--", "true"], "--time-limit 'soon': give seconds"),
        (["local", "-n", "1", "--cycle-time-ms", "-1", "--", "true"], "give a number of 0 or more"),
        (["local", "-n", "1", "--cache-capacity", "1.5", "--", "true"], "give a whole number of 0 or more"),
        (["local", "-n", "1", "--log-level", "loud", "--", "true"], "choose one of trace"),
        (["local", "-n", "1", "--config-file", "/no/such", "--", "true"], "--config-file /no/such: it cannot be read"),
        (["sbatch", "--nodes", "0", "--ranks-per-node", "1", "--", "true"], "--nodes 0: give 1 or more"),
        (["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--time", "x", "--", "true"], "--time 'x'"),
        (["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--account", "a b", "--", "true"], "takes one word"),
        (["sbatch", "--nodes", "1", "--ranks-per-node", "1", "--via", "mpirun", "--mpi", "x", "--", "true"], "srun's"),
    ],
)
def test_wrong_words_are_explained(argv, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(argv)
    said = capsys.readouterr().err
    assert (ended.value.code, sentence in said) == (2, True), said


def test_a_config_file_is_read_and_options_come_first(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("params:\n  fusion_threshold_mb: 16\n  cycle_time_ms: 3\nautotune:\n  enabled: true\n")
    options = launch.parse(["local", "-n", "1", "--config-file", str(path), "--cycle-time-ms", "1", "--", "true"])
    expected = {"HOROVOD_FUSION_THRESHOLD": str(16 << 20), "HOROVOD_CYCLE_TIME": "1", "HOROVOD_AUTOTUNE": "1"}
    assert launch.describe(options).environment == expected
    for text, sentence in (
        ("params:\n  fusion: 1\n", "params: fusion is no setting that is known"),
        ("- 1\n", "it is no YAML of sections"),
        ("params: [", "it cannot be read"),
        ("autotune:\n  enabled: maybe\n", "write true or false"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=sentence):
            launch.describe(launch.parse(["local", "-n", "1", "--config-file", str(path), "--", "true"]))


def test_a_hostfile_is_read(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode1 slots=4\n\nnode2   slots = 2 # old\nnode3\n")
    assert job.read_hostfile(path) == (Host("node1", 4), Host("node2", 2), Host("node3", 1))
    path.write_text("node1 slots=4\nnode2 cores=3\n")
    with pytest.raises(UserError, match="line 2 is 'node2 cores=3'; write: name slots=N"):
        job.read_hostfile(path)


def test_ranks_are_placed_as_mpirun_places_them():
    assert job.placed(3, (Host("a", 2), Host("b", 2))) == [Host("a", 2), Host("b", 1)]
    described = job.Job(("x",), 3, (Host("a", 2), Host("b", 2)), cores=4)
    assert (described.ranks_a_host, described.threads, described.crowded) == (2, 2, False)
    assert job.Job(("x",), 8, nodes=2, cores=2).crowded


def test_horovodrun_is_told_of_no_more_slots_than_ranks():
    """By Gloo it starts a rank in each."""
    described = job.Job(("x",), 3, (Host("a", 2), Host("b", 2), Host("c", 1)), interface="eth0")
    made = launch.words.horovodrun(described, ENVIRONMENT).words
    assert made[made.index("-H") + 1] == "a:2,b:1"


@given(st.text(max_size=60))
def test_any_text_is_hosts_tasks_or_a_user_s_error(text):
    for parse in (job.parse_hosts, slurm.tasks_per_node, launch.seconds, slurm.hostnames):
        with contextlib.suppress(UserError):
            parse(text)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=5))
def test_tasks_per_node_reads_what_slurm_writes(parts):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)
    assert slurm.tasks_per_node(text) == [count for count, times in parts for _ in range(times)]


def test_layout_of_uneven_tasks():
    told = {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "1"}
    assert gloo.layout(rank_info.RankInfo("srun", 3, 5, 1), told) == (2, 1, 2)
    assert gloo.layout(rank_info.RankInfo("srun", 4, 5, 0), {**told, "SLURM_NODEID": "2"}) == (1, 2, 3)
    assert gloo.layout(rank_info.RankInfo("launch local", 1, 2, 1), {}) == (2, 0, 1)
    with pytest.raises(UserError, match="do not belong together"):
        gloo.layout(rank_info.RankInfo("srun", 3, 6, 1), told)


# Jobs that run.

PROGRAM = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
print("out of", rank, flush=True)
print("err of", rank, file=sys.stderr, flush=True)
"""


def local(code: str, *options: str, ranks: int = 2) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", "local", "-n", str(ranks), *options, "--", "python", "-c", code]


def test_output_is_told_apart_by_rank_and_written_to_files(tmp_path):
    status, output = run(local(PROGRAM + "print('no end of line', end='')", "--output-dir", "logs of it"), tmp_path)
    assert status == 0, output
    assert sorted(line for line in output.splitlines() if line.startswith("[")) == sorted(
        f"[{rank}] {text}" for rank in (0, 1) for text in (f"out of {rank}", f"err of {rank}", "no end of line")
    )
    for rank in (0, 1):
        assert (tmp_path / "logs of it" / f"rank-{rank}.stdout").read_text() == f"out of {rank}\nno end of line"
        assert (tmp_path / "logs of it" / f"rank-{rank}.stderr").read_text() == f"err of {rank}\n"


def test_a_failure_is_told_with_the_rank_s_last_lines(tmp_path):
    code = PROGRAM + "time.sleep(0 if rank else 60)\nprint('what was wrong', file=sys.stderr)\nsys.exit(7)"
    status, output = run(local(code), tmp_path)
    assert status == 7
    host = os.uname().nodename
    said = re.escape(f"hvdtrain: rank 1 on {host} ended with exit status 7; ending the others; its last lines:")
    assert re.search(rf"^{said}\n(  (out|err) of 1\n){{2}}  what was wrong\n", output, re.MULTILINE), output


def begin(folder: Path, by: str, code: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start two ranks of a program; the launcher, and the file that holds what it prints."""
    output = folder / "output"
    line = ["python", "-m", "hvdtrain", "launch", by, "-n", "2", "--", "python", "-c", code]
    own = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with open(output, "w") as file:
        return subprocess.Popen(line, cwd=folder, stdout=file, stderr=file, env={**os.environ, **own}), output


def pids(line: str, output: Path) -> list[int]:
    """The last word of the lines that both ranks print."""

    def found() -> list[int]:
        return [int(words.split()[-1]) for words in output.read_text().split("\n")[:-1] if line in words]

    wait_for(lambda: len(found()) == 2, 30, output.read_text)
    return found()


def wait_gone(pids: list[int], seconds: float) -> None:
    try:
        wait_for(lambda: not any(map(running, pids)), seconds)
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)


STUBBORN = """
import os, signal, sys, time, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print("pid", os.getpid(), flush=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_a_killed_rank_ends_the_job_and_nothing_stays(tmp_path, by):
    """Also programs that ignore SIGTERM, and what they started themselves."""
    process, output = begin(tmp_path, by, STUBBORN)
    ranks, children = pids("pid", output), pids("child", output)
    began = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    assert process.wait(30) == 128 + signal.SIGKILL
    took = time.monotonic() - began
    text = output.read_text()
    number = next(int(line[1]) for line in text.splitlines() if line.endswith(f"pid {ranks[1]}"))
    assert f"hvdtrain: rank {number} on {os.uname().nodename} was killed by SIGKILL; ending the others" in text
    wait_gone([*ranks, *children], max(5 - took, 0.5))


@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_a_killed_launcher_leaves_nothing(tmp_path, by):
    process, output = begin(tmp_path, by, STUBBORN)
    found = pids("pid", output) + pids("child", output)
    process.kill()
    process.wait()
    wait_gone(found, 5)


# A handler may run within print, so whole lines are written, past its buffer.
LISTENING = """
import os, signal, sys, time
def say(line):
    os.write(1, f"{line}\\n".encode())
def heard(number, _):
    say(f"heard {signal.Signals(number).name}")
    if number != signal.SIGUSR1:
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, heard)
say(f"pid {os.getpid()}")
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_signals_to_the_launcher_reach_all_ranks(tmp_path, by):
    process, output = begin(tmp_path, by, LISTENING)
    pids("pid", output)
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: output.read_text().count("heard SIGUSR1") == 2, 10, output.read_text)
    process.send_signal(signal.SIGINT if by == "local" else signal.SIGTERM)
    assert process.wait(30) == 75
    text = output.read_text()
    assert sorted(line for line in text.splitlines() if "USR1" in line) == [f"[{i}] heard SIGUSR1" for i in (0, 1)]


def test_a_request_waits_for_a_program_that_does_not_listen_yet(tmp_path):
    """As one that still imports a framework: by itself SIGUSR1 would end it."""
    late = f"import os, time\nprint('here', os.getpid(), flush=True)\ntime.sleep(1)\n{LISTENING}"
    process, output = begin(tmp_path, "local", late)
    pids("here", output)
    process.send_signal(signal.SIGUSR1)
    pids("pid", output)
    wait_for(lambda: output.read_text().count("heard SIGUSR1") == 2, 10, output.read_text)
    process.terminate()
    assert process.wait(30) == 75, output.read_text()


def test_the_time_limit_stops_the_ranks(tmp_path):
    status, output = run(local(LISTENING, "--time-limit", "2"), tmp_path)
    assert (status, output.count("heard SIGTERM")) == (75, 2), output
    assert "the time limit of 2 s is reached" in output


def test_a_program_that_is_not_there(tmp_path):
    status, output = run(["python", "-m", "hvdtrain", "launch", "local", "-n", "2", "--", "no-such-program"], tmp_path)
    assert status == 2, output
    assert "no-such-program cannot be started (No such file or directory); is it on PATH?" in output
    assert "Traceback" not in output


def test_more_ranks_than_the_launcher_starts(tmp_path):
    """An mpirun of another MPI than the one that is asked: each rank thinks that it is alone."""
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
    assert "mpirun started rank 0 on" in process.stderr
    assert "of 1, and 2 ranks were asked for" in process.stderr


def test_a_launcher_that_fails_is_heard(tmp_path):
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho 'no such thing as MPI here' >&2\nexit 3\n")
    fake.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(BIN), os.environ["PATH"]])
    words = [sys.executable, "-m", "hvdtrain", "launch", "mpirun", "-n", "2", "--", "true"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "mpirun ended with exit status 3 before rank 0, 1 came; it said: no such thing as MPI here" in done.stderr


def test_a_caller_without_the_token_is_turned_away(tmp_path):
    """Neither side believes the other without a proof."""
    with pytest.raises(UserError, match="cannot be reached"):
        connect_to_a_liar()
    assert proof("a", "challenge", "rank") != proof("a", "challenge", "supervisor")
    assert proof("a", "challenge", "rank") != proof("b", "challenge", "rank")


def connect_to_a_liar() -> None:
    import json
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    guest, _ = door.accept()
                    with guest:
                        challenge = json.loads(guest.makefile().readline())["challenge"]
                        wrong = proof("another word", challenge, "supervisor")
                        guest.sendall(protocol.encode({"challenge": "x", "proof": wrong}))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(protocol.SUPERVISOR, f"127.0.0.1:{door.getsockname()[1]}")
            protocol.connect("the token", 1.0)


def test_any_bytes_survive_the_channel():
    for raw in (b"\xff\xfe\n", bytes(range(256)), "grün".encode()):
        assert protocol.data(protocol.text(raw)) == raw


def test_horovod_works_without_horovodrun(tmp_path):
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


def test_dry_run_starts_nothing_and_its_line_works(tmp_path):
    program = ["python", "-c", "print('it is' + ' on')"]
    words = ["python", "-m", "hvdtrain", "launch", "mpirun", "-n", "2", "--dry-run", "--", *program]
    status, line = run(words, tmp_path)
    assert (status, "it is on" in line) == (0, False), line
    status, output = run(["bash", "-c", line.splitlines()[-1]], tmp_path)
    assert (status, output.count("it is on")) == (0, 2), output


def test_help_is_quick_and_imports_little():
    code = (
        "import sys; from hvdtrain.__main__ import main\n"
        "try: main(['launch', '--help'])\nexcept SystemExit: print(*sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert not {"torch", "mxnet", "tensorflow", "numpy", "jinja2", "yaml"} & set(output.split("\n")[-2].split())


def test_hosts_that_cannot_be_reached_are_named(monkeypatch, tmp_path):
    """With an ssh that answers as the real one does."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nfor host; do case $host in node*) break;; esac; done\n"
        "case $host in node1) echo 'ada@node1: Permission denied (publickey).' >&2; exit 255;;\n"
        "node2) echo 'bash: python: No such file or directory' >&2; exit 127;;\n"
        '*) echo \'{"python": "2.7"}\';; esac\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError) as raised:
        hosts.check(["node1", "node2", "node3"])
    text = str(raised.value)
    assert "node1: no ssh without a password (ada@node1: Permission denied (publickey).); ssh-keygen" in text
    assert "node2: " in text and "does not run there" in text
    assert "node3: it differs from this host: python 2.7 against " in text
