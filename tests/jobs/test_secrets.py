"""Jobs keep their secrets: on command lines, in a run's folder, and by the addresses that they listen on.

Processes: others see the command lines, sockets and files of a real job.
"""

import os
import re

import pytest
from support.jobs import run, succeed, wait_for
from support.stack import FASTEST

PASSWORD = "correct-horse-battery"
LOOKS = """\
import contextlib, os
# The rank's agent, the launcher, and what is between them, which listen before any framework is imported.
pids, pid, sockets = [], os.getpid(), set()
while b"hvdtrain\\0launch" not in open(f"/proc/{pid}/cmdline", "rb").read():
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    pids.append(pid)
for pid in pids:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").readlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            print("listens", words[1].split(":")[0])
with open(f"/proc/{os.getpid()}/environ", "rb") as file:
    token = next(word.split(b"=")[1] for word in file.read().split(b"\\0") if word.startswith(b"HVDTRAIN_TOKEN="))
secrets = [token, os.environ["HVDTRAIN_MIRROR"].encode(), os.environ["WANDB_API_KEY"].encode()]
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        continue
    if any(secret in line for secret in secrets):
        print("seen:", line)
print("looked")
"""


@pytest.mark.parametrize(
    ("launcher", "options"), [("local", []), ("horovodrun", ["-H", "localhost:1", "--interface", "lo"]), ("mpirun", [])]
)
def test_a_job_shows_no_credentials_and_listens_on_loopback_only(tmp_path, launcher, options):
    """No command line has them, by their name or their value; the ranks get them.

    Horovodrun listens on loopback as Horovod is built here: as published, it listens on all interfaces.
    """
    before = set(os.listdir("/tmp"))
    command = ["python", "-m", "hvdtrain", "launch", launcher, "-n", "1", *options, "--env", "WANDB_API_KEY"]
    password = f"{PASSWORD}-{os.getpid()}"  # unlike that of other tests that run now
    secret = {"HVDTRAIN_MIRROR": f"https://ada:{password}@mirror", "WANDB_API_KEY": password}
    status, output = run([*command, "--", "python", "-c", LOOKS], tmp_path, **secret)
    assert (status, "looked" in output, "seen" in output) == (0, True, False), output
    listening = re.findall(r"listens (\w+)", output)
    if launcher != "mpirun":
        assert len(listening) == 2, output  # the supervisor, and the rendezvous server of Gloo's ranks
        assert set(listening) == {"0100007F"}
    new = [f"/tmp/{name}" for name in set(os.listdir("/tmp")) - before if re.fullmatch(r"hvdtrain-\w{32}", name)]
    wait_for(lambda: not any(map(os.path.exists, new)), 30, lambda: new)  # those of other tests disappear


def test_a_run_folder_holds_no_values_of_variables(tmp_path):
    """So other users may read it, as far as the umask permits."""
    secret = {"AWS_SECRET_ACCESS_KEY": PASSWORD, "HVDTRAIN_TOKEN": PASSWORD, "HVDTRAIN_MIRROR": f"http://{PASSWORD}@x/"}
    command = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", "--strategy", "single", "--max-steps", "2", "--name", "run"]
    succeed(["sh", "-c", 'umask 027; exec "$@"', "sh", *command], tmp_path, **secret)
    files = [path for path in (tmp_path / "runs" / "run").rglob("*") if path.is_file()]
    assert {"config.json", "result.json", "metrics.jsonl", "rank-0.log"} <= {path.name for path in files}
    for path in files:
        assert PASSWORD.encode() not in path.read_bytes(), path
        assert not path.stat().st_mode & 0o027, path
