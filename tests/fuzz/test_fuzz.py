"""Whatever is in a file, a variable or a word of the command line: a parser answers, or says in one sentence why not.

Under pytest each property sees a few dozen examples, always the same. `make fuzz`, which runs this file as a program,
gives each of them FUZZ_MINUTES of ever new ones, and shows a table at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gzip
import hashlib
import io
import json
import logging
import os
import resource
import socket
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hvdtrain.cli import launch, predict, training_options
from hvdtrain.config.options import Config
from hvdtrain.config.record import from_record, recorded, to_record
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.datasets import formats
from hvdtrain.doctor import subprocesses
from hvdtrain.errors import HvdtrainError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.launch import gloo, horovod_options, hostlist, job, protocol, sbatch
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.report.pages import Report
from hvdtrain.report.runs import read_run
from hvdtrain.runs import checkpoints, metrics
from hvdtrain.system import rank_info, slurm

LONG = "FUZZ_MINUTES" in os.environ
HANGS_S = 60
"""An example that takes so long ends everything, with the stack."""
MOST_BYTES = 1 << 30
"""More than any example needs, less than a bomb takes."""
FUZZ = settings(
    max_examples=100 if LONG else 30,
    derandomize=not LONG,
    database=None,
    deadline=timedelta(seconds=10),
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


class Count:
    """Examples seen."""

    examples = 0


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """What runs inside may end well or with an error of our own, within bounds of time and memory."""
    Count.examples += 1
    before = _peak_bytes()
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    try:
        yield
    except HvdtrainError as error:
        assert str(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert _peak_bytes() - before < MOST_BYTES, "a memory bomb"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def folder_of(**files: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            path = Path(name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield Path(name)


# What is given to the parsers: near what is valid, so that it gets past the first test.

ABSURD = (
    0,
    1,
    127,
    255,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
NUMBERS = [
    (number % (1 << 8 * width)).to_bytes(width, order)
    for number in ABSURD
    for width in (1, 2, 4, 8)
    for order in ("big", "little")
]
DIGITS = ("0", "-1", "007", "1.5", "1e999", "nan", "1_0", "٣", "99999", "65537", str(1 << 70), "9" * 5000, "")


@st.composite
def mutated(draw: st.DrawFn, valid: tuple[bytes, ...], pieces: tuple[bytes, ...] = ()) -> bytes:
    """A valid file in which pieces are overwritten, put in, left out or cut off."""
    content = bytearray(draw(st.sampled_from(valid)))
    piece = st.binary(max_size=8) | st.sampled_from([*NUMBERS, *pieces])
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.sampled_from([0, 1, 2, 4, 8, 64, 1 << 30]))] = draw(piece)
    return bytes(content)


@st.composite
def text_like(draw: st.DrawFn, valid: tuple[str, ...], pieces: str | tuple[str, ...]) -> str:
    """A valid text in which some parts are others; halves of characters and very many parts as well."""
    found = draw(st.sampled_from(valid))
    piece = st.sampled_from([*pieces, *DIGITS, "\n", "\0", "\udc80", " "]) | st.text(max_size=3)
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(found)))
        new = draw(piece) * draw(st.sampled_from([1, 1, 1, 1, 2, 3000]))
        found = found[:at] + new + found[at + draw(st.sampled_from([0, 1, 2, len(found)])) :]
    return found[: 1 << 17]  # as long as a variable or a word can be


DEEP = "@deep"
ODD = st.recursive(
    st.sampled_from([None, True, False, 0, -1, 0.5, 1 << 70, 10**400, float("inf"), float("nan"), "", "x", "\0", DEEP])
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=4,
)


@st.composite
def disturbed(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value in which a part is another one, or there no longer, or there twice."""
    if not value or not isinstance(value, dict | list) or not draw(st.integers(0, 5)):
        return draw(ODD)
    found = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(list(found)))
        what = draw(st.sampled_from(["disturb", "disturb", "disturb", "remove", "add"]))
        if what == "disturb":
            found[key] = draw(disturbed(found[key]))
        elif what == "add":
            found[draw(st.text(max_size=3))] = found[key]
        elif len(found) > 1:
            del found[key]
    return found if isinstance(value, dict) else list(found.values())


TOO_DEEP = b"[" * 100_000


@st.composite
def json_like(draw: st.DrawFn, value: Any) -> bytes:
    """JSON of a disturbed value, nested too deep at times; or JSON's bytes mutated."""
    if not draw(st.integers(0, 3)):
        return draw(mutated((json.dumps(value).encode(),), (b"NaN", b"[" * 2000, b'"', b"{", b"1e999", b"\\ud800")))
    depth = draw(st.sampled_from([50, 400, 700, 900, 100_000]))
    text = json.dumps(draw(disturbed(value)))
    return text.replace(f'"{DEEP}"', "[" * depth + "]" * depth).encode()


# Files of data.


def idx_file(*shape: int, values: int | None = None) -> bytes:
    count = int(np.prod(shape)) if values is None else values
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(i % 256 for i in range(count))


def npz_file(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def npz_member(header: str, values: bytes) -> bytes:
    """An .npz whose only array has this header, whatever it says."""
    text = header.encode("latin1", "replace") + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values)
    return file.getvalue()


class Large(bytes):
    """Bytes that are not to be shown."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


IMAGES = idx_file(2, 3, 4)
IDX_BYTES = (
    mutated((IMAGES, gzip.compress(IMAGES)), (b"\x1f\x8b", b"\0\0\x08\x03"))
    | st.lists(st.sampled_from(ABSURD), min_size=3, max_size=3).map(
        lambda n: idx_file(*(i % (1 << 32) for i in n), values=24)
    )
    | mutated((IMAGES,)).map(gzip.compress)
)


@FUZZ
@given(IDX_BYTES)
@example(Large(gzip.compress(IMAGES + bytes(1 << 26)) * 40))
def test_idx(content: bytes) -> None:
    with folder_of(**{"train-images-idx3-ubyte": content}) as folder, answers():
        formats.read_idx(folder / "train-images-idx3-ubyte", "write it anew")


ARRAYS = {"images": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "labels": np.array([3, 0])}
HEADERS = st.builds(
    "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}, }}".format,
    st.sampled_from(["<f4", "|V0", "|S0", "|u1", "|O", "M8[s]", "", [("a", "<f4")], ("<f4", (2,)), None]),
    st.booleans(),
    st.lists(st.sampled_from(ABSURD) | st.integers(-2, 9), max_size=4).map(tuple) | st.just("x"),
) | st.sampled_from(["(" * 5000, "{'descr': '|u1'}", "0j + 1", ""])


@FUZZ
@given(
    mutated((npz_file(np.savez, **ARRAYS), npz_file(np.savez_compressed, **ARRAYS)), (b"PK\x01\x02", b"PK\x05\x06"))
    | st.builds(npz_member, HEADERS, st.binary(max_size=40))
)
def test_npz(content: bytes) -> None:
    with folder_of(**{"train.npz": content}) as folder, answers():
        formats.read_npz(folder / "train.npz", ("images", "labels"))


def tar_file() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in formats.CIFAR_FILES:
            member = tarfile.TarInfo(f"{formats.CIFAR_FOLDER}/{name}")
            member.size = 2 * formats.CIFAR_RECORD
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return file.getvalue()


TAR = tar_file()


@FUZZ
@given(mutated((TAR,), (b"ustar", b"x", b"7777777777", b"\x80" + b"\xff" * 11)).map(lambda tar: gzip.compress(tar, 1)))
def test_cifar_archive(content: bytes) -> None:
    records, formats.CIFAR_RECORDS = formats.CIFAR_RECORDS, 2  # the real ones are too large for many examples
    try:
        with answers(), formats.blame(Path(formats.CIFAR_ARCHIVE), "put the published file in its place"):
            formats.cifar(formats.cifar_members(io.BytesIO(content)))
    finally:
        formats.CIFAR_RECORDS = records


# What a run left behind.


def saved_files() -> dict[str, bytes]:
    weights = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    state = OptimizerState({f"momentum/{name}": value for name, value in weights.items()})
    position = Position(1, 2, 42, 64, 0)
    whole = Checkpoint(weights, state, position, "lenet", "torch", "sgd", "ab12", 0.5, ("0", "1"))
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoints.save(Path(folder), whole, keep=1)
        return {name: (path / name).read_bytes() for name in (*checkpoints.FILES, checkpoints.MANIFEST)}


SAVED = saved_files()
WEIGHTS, MOMENTA, STATE = checkpoints.FILES


def tensors_like(file: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with bytes mutated, or with another header before the same values."""
    length = struct.unpack("<Q", file[:8])[0]
    header, values = json.loads(file[8 : 8 + length]), file[8 + length :]
    return mutated((file,)) | json_like(header).map(lambda text: struct.pack("<Q", len(text)) + text + values)


def sums(files: dict[str, bytes]) -> bytes:
    """The manifest of files, so that what is read is not refused for its sum."""
    return json.dumps({"sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}}).encode()


def is_position(position: Position) -> bool:
    return all(type(value) is int and value >= 0 for value in vars(position).values())


def loads(files: dict[str, bytes]) -> None:
    with folder_of(**files) as folder, answers():
        path, found = checkpoints.newest(folder)
        assert is_position(found.position)
        assert np.isfinite(float(found.score))
        assert all(isinstance(name, str) for name in found.classes)
        checkpoints.network(path, found)


@FUZZ
@given(st.fixed_dictionaries({WEIGHTS: tensors_like(SAVED[WEIGHTS]), MOMENTA: tensors_like(SAVED[MOMENTA])}))
def test_checkpoint_tensors(tensors: dict[str, bytes]) -> None:
    files = {**tensors, STATE: SAVED[STATE]}
    loads({**files, checkpoints.MANIFEST: sums(files)})


@FUZZ
@given(json_like(json.loads(SAVED[STATE])))
@example(TOO_DEEP)
@example(json.dumps({**json.loads(SAVED[STATE]), "model": []}).encode())
@example(json.dumps({**json.loads(SAVED[STATE]), "model": "vgg", "position": {"step": "x"}}).encode())
def test_checkpoint_state(state: bytes) -> None:
    files = {**{name: SAVED[name] for name in (WEIGHTS, MOMENTA)}, STATE: state}
    loads({**files, checkpoints.MANIFEST: sums(files)})


@FUZZ
@given(json_like(json.loads(SAVED[checkpoints.MANIFEST])))
@example(TOO_DEEP)
@example(b'{"sha256": []}')
def test_checkpoint_manifest(manifest: bytes) -> None:
    loads({**SAVED, checkpoints.MANIFEST: manifest})


RECORDS = [
    {"kind": "train", "step": 20, "epoch": 0.5, "loss": 2.1, "lr": 0.1},
    {"kind": "test", "step": 40, "epoch": 1.0, "loss": 1.5, "accuracy": 0.5, "per_class": [0.5, 0.5]},
]


@FUZZ
@given(st.lists(st.sampled_from(RECORDS).flatmap(json_like), max_size=4))
@example([TOO_DEEP, b"[]", b"{}", b'{"kind": [], "step": 1}', b'{"kind": "x", "step": "1"}', b"\xff"])
def test_metrics(lines: list[bytes]) -> None:
    whole = json.dumps(RECORDS[0]).encode()
    with folder_of(**{"metrics.jsonl": b"\n".join([whole, *lines, b""])}) as folder, answers():
        found = metrics.read(folder / "metrics.jsonl")
        assert all(isinstance(record["kind"], str) and isinstance(record["step"], int) for record in found)


RUN = {
    "config.json": {
        "config": to_record(Config()),
        "ranks": 2,
        "devices": 1,
        "device": "cpu",
        "host": {"processor": "Z80", "cores": 8},
        "versions": {"numpy": "1.23.5"},
        "started": "2023-01-01T00:00:00",
    },
    "result.json": {
        "steps": 40,
        "accuracy": 0.5,
        "images_per_s": 100.0,
        "epoch_s": 1.5,
        "global_batch": 64,
        "shares": {"compute": 0.5, "communicate": 0.25, "data": 0.25},
        "peak_rss_mb": 100.0,
    },
}


@FUZZ
@given(
    st.fixed_dictionaries({name: json_like(value) | st.just(json.dumps(value).encode()) for name, value in RUN.items()})
)
def test_run_folder(files: dict[str, bytes]) -> None:
    with folder_of(**files) as folder, answers():
        report = Report([read_run(folder)], [])
        report.markdown()
        report.csv()


@FUZZ
@given(json_like({"config": to_record(Config())}))
@example(TOO_DEEP)
@example(b'{"config": {"data": 5, "seed": 1.5}}')
def test_recorded_config(content: bytes) -> None:
    with folder_of(**{"config.json": content}) as folder, answers():
        config = recorded(folder)
        assert from_record(to_record(config)) == config
        assert all(type(getattr(config, name)) in (type(value), int) for name, value in vars(Config()).items())


# The command line.

VALUES = [
    "digits",
    "book",
    "torch",
    "0",
    "1",
    "-1",
    "nan",
    "inf",
    "1e999",
    "True",
    "None",
    "x",
    "",
    "é",
    "\udc80",
    "\0",
    "--",
    "/",
]
TRAINING = [f"--{name.replace('_', '-')}" for options in (vars(Config()), vars(RuntimeOptions())) for name in options]


@FUZZ
@given(
    st.lists(
        st.sampled_from(TRAINING)
        | st.sampled_from(VALUES)
        | st.sampled_from(DIGITS)
        | st.builds("{}={}".format, st.sampled_from(TRAINING), st.sampled_from([*VALUES, *DIGITS]))
        | st.text(max_size=4),
        max_size=5,
    )
)
@example(["--resume=" + "9" * 300])
@example(["--recipe=--"])
def test_training_options(argv: list[str]) -> None:
    with answers(), contextlib.suppress(SystemExit), silence():
        training_options.parse(argv, "train", "torch", speaks=False)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


LAUNCHING = ("--interface", "--env", "--output-dir", "--time-limit", "--start-timeout", "-n", "-H", "--nodes", "--mpi")
OWN = [one.option for one in horovod_options.SETTINGS]
BATCHING = ("--nodes", "--ranks-per-node", "--cpus-per-rank", "--signal-before", "--time", "--mem", "--gpus-per-node",
            "--partition", "--account", "--job-name", "--container", "--mpi", "--via", *LAUNCHING)  # fmt: skip
WORDS = [
    *VALUES,
    *DIGITS,
    "node1:2,node2",
    "1:30",
    "A=b",
    "64G",
    "1-2:3:4",
    "srun",
    "mpirun",
    "#SBATCH",
    "$(x)",
    "a\nb",
]


def word_pairs(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    pairs = st.tuples(st.sampled_from([*names, *OWN]), st.sampled_from(WORDS) | st.text(max_size=3))
    return st.lists(pairs, max_size=4).map(lambda found: [f"{name}={value}" for name, value in found])


@FUZZ
@given(word_pairs(BATCHING), st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
@example([], ["\udc80"])
def test_sbatch_options(words: list[str], program: list[str]) -> None:
    with folder_of() as folder, answers(), contextlib.suppress(SystemExit), silence():
        given = ["sbatch", "--nodes", "2", "--ranks-per-node", "2", *words, "--script", str(folder / "script")]
        sbatch.run(launch.parse([*given, "--", *program]))


@FUZZ
@given(
    st.sampled_from(["local", "horovodrun", "mpirun", "srun"]), word_pairs(LAUNCHING), st.lists(st.sampled_from(WORDS))
)
def test_launch_options(launcher: str, words: list[str], program: list[str]) -> None:
    given = [launcher, "-n", "2", "--dry-run", *words, "--", *program]
    with answers(), contextlib.suppress(SystemExit), silence():
        asked = launch.describe(launch.parse(given))
        if asked.ranks < 100:  # local has one line for each
            job.check_job(asked)
            launch.build(launcher, asked, {})


@FUZZ
@given(text_like(("90", "1:30", "1:00:00", "0.5"), ":.0١"), text_like(("NAME", "NAME=value", "A=b=c"), "=_ \0"))
def test_times_and_variables(time: str, variable: str) -> None:
    with answers():
        launch.seconds(time)
    with answers():
        launch.requested_variables([variable], {"NAME": "value"})


# Hosts, and what launchers leave in the environment.


@FUZZ
@given(text_like(("node1:4,node2:4", "a", "10.0.0.1:2"), (":", ",", ",n1:2", "n-", "_", ".")))
@example(",".join(f"{i:x}" for i in range(1 << 14)))
def test_hosts(text: str) -> None:
    with answers():
        found = hostlist.parse_hosts(text)
        assert found and all(host.slots > 0 for host in found)


@FUZZ
@given(
    text_like(("node1 slots=4\nnode2 slots=2 max_slots=4\n# a remark\n", "a"), ("slots", "=", "#", "\nn slots=1")).map(
        lambda text: text.encode("utf-8", "surrogateescape")
    )
    | mutated((b"node1 slots=4\nnode2\n",))
)
@example(b"\n".join(b"n%d" % i for i in range(100_000)))
def test_hostfile(content: bytes) -> None:
    with folder_of(hosts=content) as folder, answers():
        assert all(host.slots > 0 for host in hostlist.read_hostfile(folder / "hosts"))


NODES = text_like(
    ("node[01-04,07],other", "a,b", "r[1-2]n[1-3]"), ("[", "]", ",", "-", "[1-65536]", ",a[1-60000]", "[0-9]")
)
TASKS = text_like(("2(x3),1", "2", "1(x2)"), ("(x", ")", ",", "1(x99999),", "(x2)", "999999"))


@FUZZ
@given(NODES, TASKS)
@example("a[1-65536]," * 9000 + "b", "1(x99999)," * 9000 + "1")
@example(f"a[{'1-65536,' * 9000}1]", "1")
@example("[1-60000]" + "å" * 60000 + "[1-60000]", "1")
def test_slurm_lists(nodes: str, tasks: str) -> None:
    with answers():
        slurm.hostnames(nodes)
    with answers():
        slurm.tasks_per_node(tasks)
    with answers():
        hostlist.slurm_hosts({"SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": tasks})


VARIABLES = [name for names in rank_info.VARIABLES.values() for name in names]
PLACES = st.dictionaries(
    st.sampled_from([*VARIABLES, rank_info.ADDRESS, rank_info.PORT, "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_NODEID",
                     "SLURM_STEP_TASKS_PER_NODE", rank_info.LAUNCHER]),
    st.sampled_from([*DIGITS, "1", "2", "3", "2(x2)", "node[1-2]", "x", "host", "\udc80"]),
)  # fmt: skip
SLURM = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a,b", "SLURM_JOB_ID": "7",
         "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}  # fmt: skip
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "host", "MASTER_PORT": "1234"}


@FUZZ
@given(st.sampled_from([SLURM, TORCHRUN, {}]), PLACES, st.sets(st.sampled_from([*SLURM, *TORCHRUN]), max_size=2))
@example(SLURM, {"SLURM_LOCALID": "7"}, set())
@example(SLURM, {"SLURM_NODEID": "9" * 5000}, set())
@example(TORCHRUN, {"MASTER_PORT": "9" * 5000}, set())
def test_launchers_variables(valid: dict[str, str], changes: dict[str, str], gone: set[str]) -> None:
    environment = {name: value for name, value in {**valid, **changes}.items() if name not in gone}
    with answers():
        found = rank_info.detect(environment)
        assert 0 <= found.rank < found.size and found.local_rank >= 0
        gloo.layout(found, environment)
    with answers():
        meets(environment)


def meets(environment: dict[str, str]) -> None:
    address, port = rank_info.rendezvous(environment)
    assert address and isinstance(address, str) and 0 < port < 1 << 16


TF_CONFIG = {"cluster": {"worker": ["a:1234", "b:1234"]}, "task": {"type": "worker", "index": 1}}


@FUZZ
@given(
    json_like(TF_CONFIG)
    | st.builds(
        lambda worker: json.dumps({**TF_CONFIG, "cluster": {"worker": [worker, "b:1"]}}).encode(),
        text_like(("a:1",), ":[]"),
    )
)
@example(TOO_DEEP)
@example(json.dumps({**TF_CONFIG, "task": {"index": float("inf")}}).encode())
@example(json.dumps({**TF_CONFIG, "cluster": {"worker": ["a:b", "b:1"]}}).encode())
@example(json.dumps({**TF_CONFIG, "cluster": {"worker": {"a:1": 0, "b:1": 0}}}).encode())
def test_tf_config(content: bytes) -> None:
    environment = {rank_info.TF_CONFIG: content.decode(errors="surrogateescape")}
    with answers():
        found = rank_info.detect(environment)
        assert 0 <= found.rank < found.size
    with answers():
        meets(environment)


# Horovod's settings.

YAML = (
    b"params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 1.5\nautotune:\n  enabled: true\n  log_file: a.csv\n",
    b"stall_check:\n  enabled: no\n  warning_time_seconds: 60\nlogging:\n  level: INFO\ntimeline: {filename: t.json}\n",
    b"{}",
)
YAML_PIECES = (b"2001-99-99", b"!!int x", b"!!timestamp x", b"!!binary x", b"0x_", b"0b", b"&a ", b"*a", b"<<: *a",
               b"? ", b"[" * 2000, b"9" * 5000, b"1:" + b"59:" * 3000 + b"1", b"1e999", b".nan", b"{a: [b]}", b"- ",
               b"\n---\n", b"%YAML 9.9\n", b"\t", b"null", b"=", b": ")  # fmt: skip


def laughs(first: str, next_one: str) -> bytes:
    """A billion laughs: each part is twice the one before it."""
    parts = [f"&a0 {first}", *(f"&a{i} {next_one.format(i - 1)}" for i in range(1, 40))]
    return f"timeline: {{filename: [{', '.join(parts)}]}}".encode()


@FUZZ
@given(mutated(YAML, YAML_PIECES))
@example(laughs("[x, x]", "[*a{0}, *a{0}]"))
@example(laughs("{x: y}", "{{<<: [*a{0}, *a{0}]}}"))
@example(b"params: {cycle_time_ms: 2001-99-99}")
@example(b"params: {cycle_time_ms: " + b"9" * 400 + b"}")
def test_config_file(content: bytes) -> None:
    none = {one.dest: None for one in horovod_options.SETTINGS}
    with folder_of(settings=content) as folder, answers():
        found = horovod_options.variables(argparse.Namespace(config_file=folder / "settings", **none))
        assert all(isinstance(value, str) and len(value) < 1 << 16 for value in found.values())


# Messages of other processes.

MESSAGES = (
    {"challenge": "ab", "proof": "cd"},
    {"environment": {"A": "b"}, "store": ["host", 1]},
    {"signal": 15},
    {"end": True},
)


def greets(ours: socket.socket) -> None:
    """As `connect` does, which goes on to the next address for these."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        protocol.authenticate(ours, "token")


@FUZZ
@given(st.lists(st.sampled_from(MESSAGES).flatmap(json_like), max_size=3), st.sampled_from(["greet", "wait", "look"]))
@example([TOO_DEEP[: 1 << 15]], "greet")
@example([b"[1]"], "greet")
@example([b'{"proof": "\\u00e9", "challenge": ""}'], "greet")
def test_channel(lines: list[bytes], how: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, answers(), contextlib.suppress(protocol.Closed):
        theirs.sendall((b"\n".join(lines) + b"\n")[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        if how == "greet":
            return greets(ours)
        found = protocol.Channel(ours)
        messages = [found.receive()] if how == "wait" else found.receive_available()
        assert all(isinstance(message, dict) for message in messages)


@FUZZ
@given(st.lists(json_like({"rank": 0, "seconds": 1.5}) | st.binary(max_size=5), max_size=4))
@example([TOO_DEEP, b"1", b"[]"])
def test_what_probes_said(parts: list[bytes]) -> None:
    text = "".join(f"[1,0]<stdout>:{subprocesses.MARK}{part.decode(errors='replace')}\n" for part in parts)
    with answers():
        assert all(isinstance(told, dict) for told in subprocesses.said(text))


# Images to classify.


def image_file(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).convert(mode).save(file, kind)
    return file.getvalue()


PICTURES = tuple(
    image_file(kind, mode)
    for kind, mode in (("PNG", "L"), ("PNG", "P"), ("PNG", "RGBA"), ("JPEG", "RGB"), ("GIF", "P"), ("BMP", "RGB"),
                       ("TIFF", "L"), ("PPM", "RGB"), ("WEBP", "RGB"), ("TGA", "L"),
                       ("ICO", "RGBA"), ("PCX", "L"), ("SGI", "L"))
)  # fmt: skip


@FUZZ
@given(mutated(PICTURES, (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"\xff\xda", b"\xff\xc0")), st.booleans())
@example(b"P6\n12 \xff5\n", False)
def test_image(content: bytes, invert: bool) -> None:
    with folder_of(picture=content) as folder, answers():
        assert predict.read_image(folder / "picture", NETWORKS["lenet"], invert).shape == (1, 28, 28)


# For as long as one likes.


def fuzz(name: str, test: Callable[[], None], seconds: float) -> tuple[str, int, float, str]:
    """Runs a property with new examples until its time is over, or one of them fails: a row of the table."""
    Count.examples, begin, said, result = 0, time.monotonic(), 0.0, "none fails"
    while (spent := time.monotonic() - begin) < seconds and result == "none fails":
        if spent - said > 15:
            said = spent
            print(f"{name}: {Count.examples} examples in {spent:.0f} of {seconds:.0f} s", flush=True)
        try:
            test()
        except Exception as error:
            traceback.print_exc()
            result = f"FAILS: {type(error).__name__}"
    return name, Count.examples, time.monotonic() - begin, result


def main(names: list[str]) -> int:
    """Fuzzes the parsers whose names hold one of these words, by default all; 1 where one fails."""
    # What takes more fails here, and not the machine.
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    logging.disable()
    warnings.simplefilter("ignore")
    seconds = 60 * float(os.environ.get("FUZZ_MINUTES", "10"))
    tests = {name[5:]: test for name, test in globals().items() if name.startswith("test_")}
    chosen = [name for name in tests if not names or any(word in name for word in names)]
    rows = [fuzz(name, tests[name], seconds) for name in chosen]
    print(f"\n{'parser':<24}{'examples':>9}{'seconds':>9}  result")
    for name, examples, spent, result in rows:
        print(f"{name:<24}{examples:>9}{spent:>9.0f}  {result}")
    return int(any(result != "none fails" for *_, result in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
