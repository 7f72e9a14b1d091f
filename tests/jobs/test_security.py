"""What SECURITY.md promises: files and callers that mean harm get a sentence, and nothing else."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import re
import socket
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support.jobs import BIN, ROOT, run

from hvdtrain.cli import predict
from hvdtrain.collectives.ring import RingGroup, start, unpacked
from hvdtrain.datasets import downloads, formats
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.launch import command_lines, hosts
from hvdtrain.launch.gloo import Store
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import checkpoints
from hvdtrain.runs.checkpoints import Damaged
from hvdtrain.system import rank_info
from hvdtrain.system.processes import free_port

SETUP = ROOT / "setup"
PASSWORD = "correct-horse-battery"


class Harm:
    """Unpickled, it leaves a folder behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# Files.


def test_nothing_reads_pickles_or_runs_text():
    """A door that is not there needs no guard. (NumPy and YAML have safe ones.)"""
    forbidden = re.compile(
        r"pickle\.loads?\(|cloudpickle|joblib|marshal|shelve|torch\.load\(|allow_pickle=True"
        r"|yaml\.(?!safe_load|YAMLError|BaseLoader|load\(path\.read_text\(\), yaml\.BaseLoader\))\w+"
        r"|load_model\(|\beval\(|\bexec\(|shell=True|os\.system|extractall|mktemp\("
    )
    for path in (ROOT / "hvdtrain").rglob("*.py"):
        assert not forbidden.findall(path.read_text()), path
        assert path.read_text().count("np.load(") == path.read_text().count("np.load(path, allow_pickle=False)"), path


def saved(folder, **changes):
    weights = initial_weights(NETWORKS["lenet"], "xavier", 0)
    made = Checkpoint(weights, OptimizerState({}), Position(), "lenet", "torch", "sgd", "ab", 0.0, tuple("0123456789"))
    return checkpoints.save(folder, Checkpoint(**{**vars(made), **changes}), keep=1)


def rewrite(path, name, content):
    """Another content with a manifest that is right again, as somebody does who means harm."""
    (path / name).write_bytes(content)
    sums = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in checkpoints.FILES}
    (path / checkpoints.MANIFEST).write_text(json.dumps({"sha256": sums}))


def changed_state(path, **values):
    return json.dumps({**json.loads((path / "state.json").read_text()), **values}).encode()


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: rewrite(path, "state.json", b"[" * 100_000),
        lambda path: rewrite(path, "state.json", b"[]"),
        lambda path: rewrite(path, "state.json", changed_state(path, position={"epoch": -1})),
        lambda path: rewrite(path, "state.json", changed_state(path, position={"step": "1e9"})),
        lambda path: rewrite(path, "state.json", b'{"score": ' + b"9" * 10_000 + b"}"),
        lambda path: rewrite(path, "weights.safetensors", b"\xff" * 8 + b"{}"),  # a header of 2^64 bytes
        lambda path: rewrite(
            path, "weights.safetensors", pickle.dumps(Harm(path.parent / "harm"))
        ),
        lambda path: rewrite(path, "weights.safetensors", absurd_safetensors()),
        lambda path: (path / checkpoints.MANIFEST).write_text('{"sha256": []}'),
        lambda path: (path / checkpoints.MANIFEST).write_text("[" * 100_000),
        lambda path: os.truncate(path / checkpoints.MANIFEST, checkpoints.LARGEST + 1),  # sparse: it takes no disk
        lambda path: os.truncate(path / "weights.safetensors", checkpoints.LARGEST + 1),
        lambda path: ((path / "state.json").unlink(), os.mkfifo(path / "state.json")),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_checkpoint_of_somebody_else(tmp_path, harm):
    path = saved(tmp_path)
    harm(path)
    with pytest.raises(Damaged):
        checkpoints.load(path)
    assert not (tmp_path / "harm").exists()


def absurd_safetensors():
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    return len(header).to_bytes(8, "little") + header


def test_a_checkpoint_of_another_network_classifies_nothing(tmp_path, capsys):
    weights = {"w": np.zeros((2, 3), np.float32)}
    for changes in ({"weights": weights}, {"model": "../lenet"}, {"classes": ("0",)}):
        path = saved(tmp_path, **changes)
        with pytest.raises(SystemExit) as ended:
            predict.main([str(path), str(tmp_path / "image.png")])
        assert ended.value.code == 2
        assert "are not those of" in capsys.readouterr().err


def test_images_start_no_other_program(tmp_path):
    """Pillow hands PostScript to Ghostscript."""
    image = tmp_path / "image.png"
    image.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n")
    with pytest.raises(UserError, match="no image that can be read"):
        predict.read_image(image, NETWORKS["lenet"], invert=False)


def test_no_more_is_unpacked_or_fetched_than_a_published_file_has(monkeypatch, caplog):
    for module in (formats, downloads):
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
    bomb = gzip.compress(bytes(1 << 24))
    assert len(bomb) < 1 << 15
    sent = iter([bomb, bytes(1 << 21)])
    monkeypatch.setattr(downloads, "_get", lambda url, content, name: (content.write(next(sent)), content.seek(0)))
    monkeypatch.setattr(downloads, "PAUSE_S", 0)
    monkeypatch.setattr(downloads, "ROUNDS", 2)
    with pytest.raises(UserError, match="no mirror has it whole") as refused:
        downloads._fetched("file.gz", [f"http://me:{PASSWORD}@mirror/file.gz"], "0" * 64)
    assert "unpacks to more than 1048576 bytes" in caplog.text
    assert "is longer than 1048576 bytes" in str(refused.value)
    assert PASSWORD not in caplog.text + str(refused.value)


def test_memory_is_never_taken_whole():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < formats.MEMORY <= whole // 2


# Callers.


def test_what_ranks_send_each_other_is_values_only(tmp_path):
    values = [saved(tmp_path), {"a": (1, 2.5, None, True)}, np.arange(3, dtype=np.float32), np.float64(2)]
    assert str(unpacked(pickle.dumps(values))) == str(values)
    assert unpacked(pickle.dumps(checkpoints.load(values[0]))).position == Position()
    with pytest.raises(TrainingError, match=r"sent posix\.mkdir, which ranks never send"):
        unpacked(pickle.dumps(Harm(tmp_path / "harm")))
    assert not (tmp_path / "harm").exists()


def test_the_ring_keeps_its_word_to_itself():
    """Who sits between the ranks, and passes all on, does not learn the token; a false rank 0 gets nobody to join."""
    inside, outside = ("127.0.0.1", free_port()), socket.create_server(("127.0.0.1", 0))
    heard = bytearray()

    def between():
        guest, _ = outside.accept()
        while True:
            try:
                host = socket.create_connection(inside)
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        for source, sink in ((host, guest), (guest, host)):
            threading.Thread(target=pass_on, args=(source, sink), daemon=True).start()

    def pass_on(source, sink):
        while data := source.recv(1 << 16):
            heard.extend(data)
            sink.sendall(data)

    sums = []

    def rank(number, address):
        ring = RingGroup(rank_info.RankInfo("test", number, 2, number), address, PASSWORD, start_timeout_s=10)
        sums.append(ring.sum(np.ones(1))[0])
        ring.close()

    threads = [
        threading.Thread(target=between),
        threading.Thread(target=rank, args=(0, inside)),
        threading.Thread(target=rank, args=(1, outside.getsockname())),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sums == [2, 2]
    assert len(heard) > 100 and PASSWORD.encode() not in heard


def test_a_false_rank_0_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as door:

        def lie():
            guest, _ = door.accept()
            guest.sendall(b'"00"\n')
            guest.makefile().readline()
            guest.sendall(json.dumps({"proof": "0" * 64, "addresses": [], "word": ""}).encode() + b"\n")

        threading.Thread(target=lie, daemon=True).start()
        with pytest.raises(UserError, match="does not know this job's token"):
            RingGroup(rank_info.RankInfo("test", 1, 2, 1), door.getsockname(), PASSWORD, start_timeout_s=5)


def test_a_slow_stranger_does_not_hold_the_ranks_up(monkeypatch):
    """He says something every now and then, and never ends."""
    monkeypatch.setattr("hvdtrain.ring.HELLO_TIMEOUT_S", 0.5)
    address, made = ("127.0.0.1", free_port()), []

    def rank(number):
        ring = RingGroup(rank_info.RankInfo("test", number, 2, number), address, PASSWORD, start_timeout_s=10)
        made.append(number)
        ring.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    threads[0].start()
    time.sleep(0.3)
    with socket.create_connection(address) as stranger:
        threads[1].start()
        began = time.monotonic()
        while len(made) < 2 and time.monotonic() - began < 5:
            try:
                stranger.sendall(b"x")
            except OSError:
                break
            time.sleep(0.2)
        for thread in threads:
            thread.join(10)
        assert time.monotonic() - began < 5
    assert sorted(made) == [0, 1]


def test_ranks_on_a_network_need_a_word(monkeypatch, tmp_path):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "9")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"no word by which they know each other.*set HVDTRAIN_TOKEN"):
        start()
    file = tmp_path / "token"
    file.write_text("a word\n")
    file.chmod(0o644)
    monkeypatch.setenv("HVDTRAIN_TOKEN_FILE", str(file))
    with pytest.raises(UserError, match="others than its owner may use it; chmod 600"):
        start()
    file.chmod(0o600)
    assert rank_info.token() == "a word"
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        start()


LISTENERS = """\
import contextlib, os
# This rank's keeper and the supervisor, where ranks meet before any framework is there.
pids, pid, sockets = [], os.getpid(), set()
for _ in range(2):
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
"""


def test_a_job_of_one_machine_listens_on_loopback_only(tmp_path):
    status, output = run(
        ["python", "-m", "hvdtrain", "launch", "local", "-n", "1", "--", "python", "-c", LISTENERS], tmp_path
    )
    assert status == 0, output
    listening = re.findall(r"listens (\w+)", output)
    assert len(listening) == 2  # the supervisor, and the store of Gloo's ranks
    assert set(listening) == {"0100007F"}


def test_the_store_listens_where_it_is_told_to_and_takes_no_large_value():
    store = Store("127.0.0.1")
    with socket.create_connection(("127.0.0.1", store.port), 5) as caller:
        caller.sendall(b"PUT /scope/key HTTP/1.0\r\nContent-Length: 1000000000000\r\n\r\n")
        assert b" 400 " in caller.makefile("rb").readline()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", store.port), 5).close()


# Secrets.


def test_secrets_do_not_go_along():
    environment = {"PATH": "/bin", "HVDTRAIN_DATA": "/data", "SLURM_JOB_ID": "1", "OMP_NUM_THREADS": "1", "AWS": "x"}
    hidden = ("SLURM_JWT", "HVDTRAIN_TOKEN", "TORCH_API_KEY", "NCCL_PASSWORD", "TF_Secret_x")
    got = command_lines.passed({**environment, **dict.fromkeys(hidden, PASSWORD)})
    assert got.keys() == environment.keys() - {"AWS"}


def test_a_run_s_folder_holds_no_variable_s_value(tmp_path):
    """So it may be read by others, as far as the user's umask lets them."""
    secret = {"AWS_SECRET_ACCESS_KEY": PASSWORD, "HVDTRAIN_TOKEN": PASSWORD, "HVDTRAIN_MIRROR": f"http://{PASSWORD}@x/"}
    command = ["python", "-m", "hvdtrain.torch_lenet", "--strategy", "single", "--max-steps", "2", "--name", "run"]
    status, output = run(["sh", "-c", 'umask 027; exec "$@"', "sh", *command], tmp_path, **secret)
    assert status == 0, output
    files = [path for path in (tmp_path / "runs" / "run").rglob("*") if path.is_file()]
    assert {"config.json", "result.json", "metrics.jsonl", "rank-0.log"} <= {path.name for path in files}
    for path in files:
        assert PASSWORD.encode() not in path.read_bytes(), path
        assert not path.stat().st_mode & 0o027, path


SSH = """\
#!/bin/sh
# Instead of ssh: what is on the command line, and the command here.
echo "$@" >>{log}
while [ "$1" = -o ]; do shift 2; done
[ "$1" != node2 ] || exit 255
shift
exec sh -c "$*"
"""


def test_a_token_is_left_on_hosts_unseen(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(SSH.format(log=tmp_path / "log"))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = hosts.entrust(["node1"], PASSWORD)
    try:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert rank_info.token({"HVDTRAIN_TOKEN_FILE": path}) == PASSWORD
    finally:
        hosts.forget(["node1"], path)
    assert not os.path.exists(path)
    before = set(os.listdir("/tmp"))
    with pytest.raises(UserError, match="node2: the job's token cannot be left in /tmp"):
        hosts.entrust(["node1", "node2"], PASSWORD)
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("hvdtrain-")]
    log = (tmp_path / "log").read_text()
    assert "node1" in log and PASSWORD not in log


SEEN = """\
import os
with open(f"/proc/{os.getpid()}/environ", "rb") as file:
    token = next(word.split(b"=")[1] for word in file.read().split(b"\\0") if word.startswith(b"HVDTRAIN_TOKEN="))
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        continue
    if token in line:
        print("seen:", line)
print("looked")
"""


@pytest.mark.parametrize("launcher", ["local", "horovodrun", "mpirun"])
def test_no_command_line_holds_the_token(tmp_path, launcher):
    before = set(os.listdir("/tmp"))
    status, output = run(
        ["python", "-m", "hvdtrain", "launch", launcher, "-n", "1", "--", "python", "-c", SEEN], tmp_path
    )
    assert (status, "looked" in output, "seen" in output) == (0, True, False), output
    assert not [name for name in set(os.listdir("/tmp")) - before if re.fullmatch(r"hvdtrain-\w{32}", name)]


# Dependencies.


def test_every_pin_has_its_sums():
    def pins(name):
        return set(re.findall(r"^([a-z0-9-]+==\S+)", (SETUP / name).read_text(), re.M))

    assert pins("constraints.txt") == pins("requirements.lock")
    for name in ("requirements.lock", "audit.lock"):
        text = (SETUP / name).read_text()
        assert "://" not in text
        for pin, sums in re.findall(r"^(\S+==\S+)[^\n]*\n((?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)*)", text, re.M):
            assert sums, pin


@pytest.mark.parametrize("known", [True, False])
def test_the_set_up_tells_another_file_from_the_published_one(tmp_path, known):
    published = re.search(r"numpy==1.23.5.*?sha256:(\w+)", (SETUP / "requirements.lock").read_text(), re.S)[1]

    def item(name, version, **source):
        return {"metadata": {"name": name, "version": version}, "download_info": {"url": "https://x/y.whl", **source}}

    items = [
        item("numpy", "1.23.5", archive_info={"hashes": {"sha256": published if known else "0" * 64}}),
        item("hvdtrain", "0.1", dir_info={"editable": True}),
        item("torch", "2.13.0+cpu", archive_info={"hashes": {"sha256": "0" * 64}}),
    ]
    (tmp_path / "report.json").write_text(json.dumps({"install": items}))
    words = [sys.executable, "-I", "-S", str(SETUP / "locked.py"), str(tmp_path / "report.json")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "not in requirements.lock, so not compared: torch 2.13.0+cpu" in done.stdout
    assert (done.returncode, "it is not the file that was published" in done.stderr) == (int(not known), not known)


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        ("No known vulnerabilities found", 0, "No known vulnerabilities found"),
        ("Found 1 known vulnerability in 1 package", 1, "Found 1 known vulnerability in 1 package"),
        ("Traceback\nError: no route", 1, "audit: the advisories cannot be asked (Error: no route); try again"),
    ],
)
def test_the_audit_says_what_it_found_or_that_nobody_answers(tmp_path, said, status, told):
    name = f"audit-{hashlib.sha256((SETUP / 'audit.lock').read_bytes()).hexdigest()[:16]}"
    tool = tmp_path / "hvdtrain" / name / "bin" / "pip-audit"
    tool.parent.mkdir(parents=True)
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\nprintf "%s\\n" "{said}"\nexit {status}\n')
    tool.chmod(0o755)
    done = subprocess.run(
        [SETUP / "audit.sh", BIN.parent, "-s", "osv"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, told in done.stdout + done.stderr) == (status, True)
    given = (tmp_path / "words").read_text()
    assert "--strict" in given and "--ignore-vuln CVE-2024-10190" in given and given.endswith("-s osv\n")


def test_weaknesses_that_stay_have_their_reason():
    for line in (SETUP / "audit-known.txt").read_text().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"(CVE|GHSA|PYSEC)-[\w-]+  \S.{20,}\.", line), line
