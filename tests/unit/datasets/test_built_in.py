"""Built-in data sets: published ones, also downloaded by several processes, digits and synthetic images."""

import gzip
import io
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.data_files import (
    CIFAR,
    MNIST,
    MNIST_GZIP,
    MNIST_SHA256,
    cifar_archive,
    idx_bytes,
    write_files,
)
from support.jobs import wait_for
from support.mirror import Mirror
from support.row_data import rejected

from hvdtrain.datasets import downloads
from hvdtrain.datasets.built_in import IDX_FILES
from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.validation import suspicious


@pytest.mark.parametrize(
    ("name", "mean", "first"),
    # The means are those that everyone normalizes with.
    [("fashion-mnist", 0.2860, [9, 0, 0, 3, 0]), ("mnist", 0.1307, [5, 0, 4, 1, 9])],
)
def test_real_data(name, mean, first, real_data, monkeypatch):
    if not (real_data / name).is_dir():
        pytest.skip(f"needs {name}/ in HVDTRAIN_DATA")
    monkeypatch.setenv("HVDTRAIN_DATA", str(real_data))
    found = load_dataset(name)
    assert found.train.arrays[0].shape == (60000, 1, 28, 28) and found.test.arrays[0].shape == (10000, 1, 28, 28)
    assert found.train.arrays[0].dtype == np.uint8 and found.train.arrays[0].flags.writeable
    assert found.train.arrays[0].mean() / 255 == pytest.approx(mean, abs=1e-4)
    assert found.train.arrays[1][:5].tolist() == first
    assert len(found.classes) == 10


def test_idx_files_may_be_plain_gzip_or_misnamed(mnist):
    packed = load_dataset("mnist")
    assert packed.train.arrays[1].tolist() == list(MNIST["train-labels-idx1-ubyte"][8:])
    assert packed.train.arrays[0].tobytes() == MNIST["train-images-idx3-ubyte"][16:]
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(MNIST["train-images-idx3-ubyte"])
    labels = mnist / "t10k-labels-idx1-ubyte"
    labels.with_suffix(".gz").unlink()
    labels.write_bytes(MNIST[labels.name])
    plain = load_dataset("mnist")
    assert plain.fingerprint == packed.fingerprint and plain.train.arrays[0].flags.writeable


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (gzip.compress(MNIST["t10k-labels-idx1-ubyte"])[:-9], ["is truncated: its gzip data has no end"]),
        (gzip.compress(idx_bytes(np.full(3, 7))), ["is corrupt: its content has SHA-256", "published file"]),
        (b"", ["is corrupt"]),
        (b"\x1f\x8b, but no gzip data", ["cannot be read"]),
        (gzip.compress(MNIST["t10k-labels-idx1-ubyte"]) + b"more", ["cannot be read"]),
    ],
    ids=["truncated", "other content", "empty", "no gzip", "extra bytes"],  # gzip data holds the time of day
)
def test_damaged_file_in_the_users_folder_or_the_cache(mnist, tmp_path, content, texts):
    path = mnist / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(content)
    rejected("mnist", str(path), *texts, "unset HVDTRAIN_DATA")
    cached = tmp_path / "cache" / "hvdtrain" / "mnist"
    cached.mkdir(parents=True)
    cached = path.rename(cached / path.name)
    rejected("mnist", str(cached), *texts[:1], "delete it, and it is downloaded again")


def test_file_that_unpacks_to_more_than_memory(mnist, monkeypatch):
    monkeypatch.setattr(reading, "MEMORY", 1000)
    rejected("mnist", str(mnist / "train-images-idx3-ubyte.gz"), "more than this machine's memory")


@pytest.mark.parametrize(
    ("name", "shape", "fingerprint"),
    [
        ("digits", None, "a47d6c770d844d39"),
        ("synthetic", None, "346b4ce2e2d73047"),
        ("synthetic", (1, 28, 28), "346b4ce2e2d73047"),
        ("synthetic", (3, 32, 32), "24ba640ac6d5162d"),
        ("synthetic", (2, 5, 7), "a2d6aaf7338a69e5"),
    ],
)
def test_generated_bytes_never_change(name, shape, fingerprint):
    """Checkpoints record these fingerprints, which are of shapes, types and bytes, and ranks compare them."""
    made = load_dataset(name, shape)
    assert made.fingerprint.startswith(fingerprint) and made.classes == tuple("0123456789")
    assert all(array.flags.writeable and array.flags.c_contiguous for array in (*made.train.arrays, *made.test.arrays))
    assert suspicious(made) == []


def test_cifar10(cifar_folder, monkeypatch):
    cifar_archive(cifar_folder, dict(reversed(CIFAR.items())), monkeypatch)
    before = sorted(cifar_folder.parent.rglob("*"))
    found = load_dataset("cifar10")
    assert found.train.arrays[0].shape == (10, 3, 32, 32) and found.test.arrays[0].shape == (2, 3, 32, 32)
    assert found.train.arrays[1].tolist() == [0, 9] * 5 and found.classes[9] == "truck"
    assert found.train.arrays[0][2, :, 0, 0].tolist() == [10, 11, 12]
    assert found.test.arrays[0][0, :, 31, 31].tolist() == [50, 51, 52]
    assert found.train.arrays[0].flags.writeable and found.test.arrays[0].flags.c_contiguous
    assert sorted(cifar_folder.parent.rglob("*")) == before and not Path("/tmp/hvdtrain-harm").exists()


def test_cifar10_damaged(cifar_folder, monkeypatch):
    path = cifar_archive(cifar_folder, CIFAR, monkeypatch)
    path.write_bytes(path.read_bytes()[:-20])
    rejected("cifar10", str(path), "is corrupt")


FAULTS = {
    "corrupt": {"files": dict.fromkeys(MNIST_GZIP, b"<html>log in to the hotel network</html>")},
    "wrong content": {"files": dict.fromkeys(MNIST_GZIP, gzip.compress(b"other"))},
    "missing": {"files": {}},
    "cut": {"stop_after": 10},
    "silent": {"stop_after": 10, "silent_s": 5.0},
    "closed": {},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_next_mirror(fault, mirrors, monkeypatch):
    (bad, good), began = mirrors, time.monotonic()
    for name, value in FAULTS[fault].items():
        setattr(bad, name, value)
    if fault == "silent":
        monkeypatch.setattr(downloads, "SILENCE_S", 1.0)
    if fault == "closed":
        bad.server.server_close()
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert sorted(good.requested) == sorted(MNIST_GZIP)
    assert time.monotonic() - began < len(MNIST_GZIP) * 5.0


def test_slow_mirror_is_given_up(mirrors, monkeypatch):
    monkeypatch.setattr(downloads, "LONGEST_S", -1.0)
    rejected("mnist", "not complete after -1 s")


def test_own_mirror_comes_first(mirrors, monkeypatch):
    own = mirrors[1]
    own.files = {f"base/mnist/{name}": content for name, content in MNIST_GZIP.items()}
    monkeypatch.setenv("HVDTRAIN_MIRROR", own.url + "base/")
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert mirrors[0].requested == [] and len(own.requested) == 4


def test_no_mirror_has_the_file(mirrors, cached):
    for mirror in mirrors:
        mirror.stop_after = 10
    rejected("mnist", "train-images-idx3-ubyte.gz", mirrors[0].url, mirrors[1].url, "HVDTRAIN_DATA")
    assert [len(mirror.requested) for mirror in mirrors] == [2, 2], "each is tried twice"
    assert [path.name for path in cached.iterdir()] == [".lock"], "an incomplete file is left"


def test_a_mirror_s_password_is_in_no_message(mirrors, monkeypatch, caplog):
    for mirror in mirrors:
        mirror.files = {}
    address = mirrors[1].url.removeprefix("http://")
    monkeypatch.setenv("HVDTRAIN_MIRROR", f"http://ada:correct-horse@{address}?signature=battery")
    text = str(rejected("mnist", "no mirror has it complete", address.rstrip("/")))
    assert address.rstrip("/") in caplog.text
    assert not any(secret in text + caplog.text for secret in ("ada", "correct-horse", "battery"))


def test_cache_is_not_writable(mirrors, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    rejected("mnist", "cannot be written", "HVDTRAIN_DATA")


def test_offline_never_connects(mirrors, cached, monkeypatch):
    def connect(*_: object) -> None:
        raise AssertionError("a connection in spite of HVDTRAIN_OFFLINE")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setenv("HVDTRAIN_OFFLINE", "1")
    write_files(cached, {name: MNIST[name] for name in IDX_FILES[:2]})
    text = str(rejected("mnist", "HVDTRAIN_OFFLINE", str(cached), mirrors[0].url, *IDX_FILES[2:]))
    assert "train-" not in text, "these two files exist"
    write_files(cached, MNIST)
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert mirrors[0].requested == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("rank", "visible"), [("0", True), ("1", False)])
def test_progress_on_rank_0(rank, visible, mirrors, monkeypatch):
    for name, value in {"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    load_dataset("mnist")
    assert ("train-images-idx3-ubyte.gz" in terminal.getvalue()) == visible


PROGRAM = """
import sys
from hvdtrain.datasets import registry
from hvdtrain.datasets.built_in import IDX_FILES, PUBLISHED, Published
url, *sums = sys.argv[1:]
PUBLISHED["mnist"] = Published((url,), tuple("0123456789"), dict(zip(IDX_FILES, sums)))
print(registry.load_dataset("mnist").fingerprint)
"""


def start(mirror: Mirror) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, mirror.url, *MNIST_SHA256.values()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_one_of_several_processes_downloads(mirrors):
    mirrors[0].delay_s = 0.2  # so that the other processes start meanwhile
    processes = [start(mirrors[0]) for _ in range(2)]
    outputs = {process.communicate(timeout=60) for process in processes}
    assert outputs == {(load_dataset("mnist").fingerprint + "\n", "")}
    assert sorted(mirrors[0].requested) == sorted(MNIST_GZIP)


def test_killed_during_a_download(mirrors, cached):
    mirrors[0].stop_after, mirrors[0].silent_s = 1000, 20.0
    process = start(mirrors[0])
    wait_for(lambda: mirrors[0].requested, 30)
    time.sleep(0.1)
    process.kill()
    process.communicate()
    assert [path.name for path in cached.iterdir()] == [".lock"]
    (cached / ".train-images-idx3-ubyte.gz.12345").write_bytes(b"incomplete")
    mirrors[0].stop_after = None
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert {path.name for path in cached.iterdir()} - {".lock"} == set(MNIST_GZIP)
