"""Data: every source gives what it should, and every bad file one sentence that names it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import wait_for

from hvdtrain.datasets import downloads, formats, registry
from hvdtrain.datasets.registry import PUBLISHED, Published, load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.description import Network
from hvdtrain.networks.registry import NETWORKS

LENET, CIFAR_LENET = NETWORKS["lenet"], NETWORKS["cifar_lenet"]
SMALL = Network((1, 2, 3), 4, ())
QUICK = settings(derandomize=True, deadline=None, max_examples=150, database=None)


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data but what the test brings, an empty cache, and short waits."""
    for name in ("HVDTRAIN_DATA", "HVDTRAIN_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "PAUSE_S", 0.0)


def refused(name: str | Path, *words: str, network: Network = LENET, offline: bool = False) -> str:
    """The sentence with which `load` refuses; it holds all these words."""
    with pytest.raises(UserError) as caught:
        load_dataset(str(name), network, offline)
    text = str(caught.value)
    assert caught.value.exit_status == 2
    assert "\n" not in text and ";" in text, text  # one sentence, with a remedy at its end
    for word in words:
        assert word in text
    return text


# Made here


def test_digits_are_enlarged_exactly() -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits", LENET)
    assert digits.train_images.shape == (1437, 1, 28, 28) and digits.test_images.shape == (360, 1, 28, 28)
    assert digits.train_images.dtype == np.uint8 and digits.test_labels.dtype == np.int64
    assert digits.classes == tuple("0123456789")
    values, labels = load_digits(return_X_y=True)
    expected = np.kron(np.rint(values.reshape(-1, 8, 8) * 255 / 16), np.ones((3, 3)))
    expected = {
        (label, np.pad(image, 2).astype(np.uint8).tobytes()) for label, image in zip(labels, expected, strict=True)
    }
    images = np.concatenate([digits.train_images, digits.test_images])
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert {(label, image.tobytes()) for label, image in zip(labels, images, strict=True)} == expected
    assert len(images) == 1797 and images.max() == 255
    counts = np.bincount(digits.test_labels)
    assert counts.min() >= 34 and counts.max() <= 37


def test_the_bytes_of_what_is_made_here_never_change() -> None:
    """Checkpoints hold these fingerprints, and ranks compare them."""
    assert load_dataset("digits", LENET).fingerprint.startswith("d7c79dc8146dcaad")
    assert load_dataset("synthetic", LENET).fingerprint.startswith("4e6725a7376225c1")
    assert load_dataset("synthetic", LENET).fingerprint != load_dataset("synthetic", CIFAR_LENET).fingerprint


@pytest.mark.parametrize("network", [LENET, CIFAR_LENET, Network((2, 5, 7), 3, ())])
def test_synthetic_can_be_learned(network: Network) -> None:
    made = load_dataset("synthetic", network)
    assert made.train_images.shape == (4096, *network.input_shape) and len(made.test_labels) == 1024
    assert made.train_images.dtype == np.uint8 and made.classes == tuple(map(str, range(network.classes)))
    means = np.stack([made.train_images[made.train_labels == label].mean(0) for label in range(network.classes)])
    distance = ((made.test_images[:, np.newaxis] - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == made.test_labels).mean() > 0.95


def test_arrays_can_be_written_and_sliced() -> None:
    made = load_dataset("synthetic", LENET)
    for array in (made.train_images, made.train_labels, made.test_images, made.test_labels):
        assert array.flags.writeable and array.flags.c_contiguous


def test_fingerprint_sees_every_bit() -> None:
    made = load_dataset("synthetic", LENET)
    before = made.fingerprint
    assert len(before) == 64 and before == load_dataset("synthetic", LENET).fingerprint
    made.test_labels[-1] ^= 1
    arrays = (made.train_images, made.train_labels, made.test_images, made.test_labels)
    assert Dataset("synthetic", *arrays, made.classes).fingerprint != before


# Published


@pytest.mark.parametrize(
    ("name", "mean", "first"),
    # The means are those that everyone normalizes with.
    [("fashion-mnist", 0.2860, [9, 0, 0, 3, 0]), ("mnist", 0.1307, [5, 0, 4, 1, 9])],
)
def test_real_data(name: str, mean: float, first: list[int], real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (real_data / name).is_dir():
        pytest.skip(f"needs {name}/ in HVDTRAIN_DATA")
    monkeypatch.setenv("HVDTRAIN_DATA", str(real_data))
    found = load_dataset(name, LENET, offline=True)
    assert found.train_images.shape == (60000, 1, 28, 28) and found.test_images.shape == (10000, 1, 28, 28)
    assert found.train_images.dtype == np.uint8 and found.train_images.flags.writeable
    assert found.train_images.mean() / 255 == pytest.approx(mean, abs=1e-4)
    assert found.train_labels[:5].tolist() == first
    assert len(found.classes) == 10


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def tiny(shape: tuple[int, int] = (28, 28)) -> dict[str, bytes]:
    """Four IDX files, named as MNIST's: 6 images to train, 3 to test."""
    generator = np.random.default_rng(0)
    arrays = [
        array
        for count in (6, 3)
        for array in (generator.integers(0, 256, (count, *shape)), generator.integers(0, 4, count))
    ]
    return dict(zip(registry.IDX_FILES, map(idx, arrays), strict=True))


FILES = tiny()
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """$HVDTRAIN_DATA/mnist, whole; its published sums are those of `tiny`."""
    monkeypatch.setitem(PUBLISHED, "mnist", PUBLISHED["mnist"]._replace(mirrors=(), sha256=SUMS))
    monkeypatch.setenv("HVDTRAIN_DATA", str(tmp_path / "data"))
    write(tmp_path / "data" / "mnist", FILES)
    return tmp_path / "data" / "mnist"


def write(folder: Path, files: dict[str, bytes], zipped: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return folder


def test_idx_files_zipped_plain_or_only_called_zipped(folder: Path) -> None:
    zipped = load_dataset("mnist", LENET, offline=True)
    assert zipped.train_labels.tolist() == list(FILES["train-labels-idx1-ubyte"][8:])
    assert zipped.train_images.tobytes() == FILES["train-images-idx3-ubyte"][16:]
    (folder / "train-images-idx3-ubyte.gz").write_bytes(FILES["train-images-idx3-ubyte"])
    labels = folder / "t10k-labels-idx1-ubyte"
    labels.with_suffix(".gz").unlink()
    labels.write_bytes(FILES[labels.name])
    plain = load_dataset("mnist", LENET, offline=True)
    assert plain.fingerprint == zipped.fingerprint and plain.train_images.flags.writeable


def test_the_cache_is_looked_into_after_the_users_folder(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "cache" / "hvdtrain" / "mnist", FILES)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    assert len(load_dataset("mnist", LENET, offline=True).train_labels) == 6


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(FILES["t10k-labels-idx1-ubyte"])[:-9], ["is cut short: its gzip data has no end"]),
        (
            gzip.compress(idx(np.full(3, 7))),
            ["is corrupt: its content has SHA-256", "expected", "published file"],
        ),
        (b"", ["is corrupt"]),
        (b"\x1f\x8b, but no gzip data", ["cannot be read"]),
        (gzip.compress(FILES["t10k-labels-idx1-ubyte"]) + b"more", ["cannot be read"]),
    ],
)
def test_published_file_damaged(folder: Path, content: bytes, words: list[str]) -> None:
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(content)
    refused("mnist", str(path), *words, "unset HVDTRAIN_DATA")


def test_damaged_in_the_cache(folder: Path, tmp_path: Path) -> None:
    cached = write(tmp_path / "cache" / "hvdtrain" / "mnist", {"t10k-labels-idx1-ubyte": idx(np.ones(3))})
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    refused("mnist", str(cached / "t10k-labels-idx1-ubyte.gz"), "is corrupt", "delete it and it is fetched again")


def test_what_unpacks_to_more_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MEMORY", 1000)
    refused("mnist", str(folder / "train-images-idx3-ubyte.gz"), "more than this machine's memory")


# CIFAR-10


def records(number: int) -> bytes:
    """Two records: red, green and blue have values of their own."""
    return b"".join(bytes([label]) + b"".join(bytes([10 * number + c]) * 1024 for c in range(3)) for label in (0, 9))


PARTS = {name: records(number) for number, name in enumerate(formats.CIFAR_FILES)}


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """$HVDTRAIN_DATA/cifar10, empty, for files of two records."""
    monkeypatch.setattr(formats, "CIFAR_RECORDS", 2)
    monkeypatch.setenv("HVDTRAIN_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    return tmp_path / "data" / "cifar10"


def archive(folder: Path, parts: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tar file of these parts, behind members that would do harm if they were extracted."""
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        harmful = {"../../harm": b"x", "/tmp/hvdtrain-harm": b"x", "elsewhere/data_batch_1.bin": b"x"}
        for name, content in {
            **harmful,
            **{f"cifar-10-batches-bin/{name}": parts[name] for name in parts},
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    monkeypatch.setitem(PUBLISHED, "cifar10", PUBLISHED["cifar10"]._replace(sha256=sums))
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10(cifar: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if packed:
        archive(cifar, dict(reversed(PARTS.items())), monkeypatch)
    else:
        write(cifar, PARTS, zipped=False)
    before = sorted(cifar.parent.rglob("*"))
    found = load_dataset("cifar10", CIFAR_LENET, offline=True)
    assert found.train_images.shape == (10, 3, 32, 32) and found.test_images.shape == (2, 3, 32, 32)
    assert found.train_labels.tolist() == [0, 9] * 5 and found.classes[9] == "truck"
    assert found.train_images[2, :, 0, 0].tolist() == [10, 11, 12]
    assert found.test_images[0, :, 31, 31].tolist() == [50, 51, 52]
    assert found.train_images.flags.writeable and found.test_images.flags.c_contiguous
    assert sorted(cifar.parent.rglob("*")) == before and not Path("/tmp/hvdtrain-harm").exists()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {**PARTS, "data_batch_3.bin": b"\0" * 6145},
            ["data_batch_3.bin holds 6145 bytes where 6146 belong"],
        ),
        ({**PARTS, "test_batch.bin": b"\xc8" + records(0)[1:]}, ["test_batch.bin holds labels up to 200"]),
        ({name: PARTS[name] for name in formats.CIFAR_FILES[:5]}, ["holds no test_batch.bin"]),
    ],
)
def test_cifar10_damaged(
    cifar: Path, parts: dict[str, bytes], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(cifar, parts, monkeypatch)
    refused("cifar10", str(path), *words, network=CIFAR_LENET)
    path.write_bytes(path.read_bytes()[:-20])
    refused("cifar10", str(path), "is corrupt", network=CIFAR_LENET)
    if len(parts) == 6:
        write(cifar, parts, zipped=False)
        refused("cifar10", str(cifar), *words, network=CIFAR_LENET)


# Downloads


class Mirror:
    """A web server on this machine: what it has, what it was asked for, and how it behaves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.delay_s = 0.0
        self.stop_after: int | None = None
        """Bytes after which it hangs up, or falls silent where `silent_s` is set."""
        self.silent_s = 0.0
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        name = request.path.strip("/")
        self.asked.append(name)
        time.sleep(self.delay_s)
        content = self.files.get(name)
        request.send_response(404 if content is None else 200)
        request.send_header("Content-Length", str(len(content or b"")))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write((content or b"")[: self.stop_after])
            request.wfile.flush()
            if self.stop_after is not None:
                time.sleep(self.silent_s)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


GZIPPED = {f"{name}.gz": gzip.compress(content) for name, content in FILES.items()}


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Mirror, Mirror]]:
    """The two mirrors of `mnist`; both have its files, which are those of `tiny`."""
    both = Mirror(), Mirror()
    for mirror in both:
        mirror.server.daemon_threads, mirror.server.block_on_close = True, False
        mirror.files = dict(GZIPPED)
    urls = (both[0].url, both[1].url)
    monkeypatch.setitem(PUBLISHED, "mnist", Published(urls, tuple("0123456789"), SUMS))
    yield both
    for mirror in both:
        mirror.close()


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "hvdtrain" / "mnist"


def test_download_and_then_no_more(mirrors: tuple[Mirror, Mirror], cached: Path) -> None:
    first = load_dataset("mnist", LENET)
    assert first.train_images.tobytes() == FILES["train-images-idx3-ubyte"][16:]
    assert sorted(mirrors[0].asked) == sorted(GZIPPED) and mirrors[1].asked == []
    assert {path.name for path in cached.iterdir()} - {".lock"} == set(GZIPPED)
    assert load_dataset("mnist", LENET).fingerprint == first.fingerprint
    assert len(mirrors[0].asked) == 4


@pytest.mark.parametrize("fault", ["corrupt", "unzipped wrong", "missing", "cut", "closed"])
def test_next_mirror(fault: str, mirrors: tuple[Mirror, Mirror]) -> None:
    bad, good = mirrors
    if fault == "corrupt":
        bad.files = dict.fromkeys(GZIPPED, b"<html>log in to the hotel's network</html>")
    elif fault == "unzipped wrong":
        bad.files = dict.fromkeys(GZIPPED, gzip.compress(b"other"))
    elif fault == "missing":
        bad.files = {}
    elif fault == "cut":
        bad.stop_after = 10
    else:
        bad.server.server_close()
    assert len(load_dataset("mnist", LENET).train_images) == 6
    assert sorted(good.asked) == sorted(GZIPPED)


def test_silent_mirror_is_given_up(mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SILENCE_S", 0.2)
    mirrors[0].stop_after, mirrors[0].silent_s = 10, 5.0
    begin = time.monotonic()
    assert len(load_dataset("mnist", LENET).train_images) == 6
    assert time.monotonic() - begin < 4


def test_slow_mirror_is_given_up(mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "LONGEST_S", -1.0)
    refused("mnist", "not done after -1 s")


def test_own_mirror_comes_first(mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    own = mirrors[1]
    own.files = {f"base/mnist/{name}": content for name, content in GZIPPED.items()}
    monkeypatch.setenv("HVDTRAIN_MIRROR", own.url + "base/")
    assert len(load_dataset("mnist", LENET).train_images) == 6
    assert mirrors[0].asked == [] and len(own.asked) == 4


def test_no_mirror_has_it(mirrors: tuple[Mirror, Mirror], cached: Path) -> None:
    for mirror in mirrors:
        mirror.stop_after = 10
    refused("mnist", "train-images-idx3-ubyte.gz", mirrors[0].url, mirrors[1].url, "HVDTRAIN_DATA")
    assert [len(mirror.asked) for mirror in mirrors] == [2, 2], "each is tried twice"
    assert [path.name for path in cached.iterdir()] == [".lock"], "half a file is left"


def test_cache_that_cannot_be_written(mirrors: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    refused("mnist", "cannot be written", "HVDTRAIN_DATA")


def test_cifar10_is_downloaded_as_it_is(
    cifar: Path, mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = archive(cifar, PARTS, monkeypatch)
    mirrors[0].files = {path.name: path.read_bytes()}
    path.unlink()
    monkeypatch.setitem(PUBLISHED, "cifar10", PUBLISHED["cifar10"]._replace(mirrors=(mirrors[0].url,)))
    assert len(load_dataset("cifar10", CIFAR_LENET).train_images) == 10
    assert (tmp_path / "cache" / "hvdtrain" / "cifar10" / path.name).is_file()


def test_offline_never_connects(mirrors: tuple[Mirror, Mirror], cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection, in spite of --offline")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    write(cached, {name: FILES[name] for name in registry.IDX_FILES[:2]})
    text = refused("mnist", "--offline", str(cached), mirrors[0].url, *registry.IDX_FILES[2:], offline=True)
    assert "train-" not in text, "these two are there"
    write(cached, FILES)
    assert len(load_dataset("mnist", LENET, offline=True).train_images) == 6
    assert mirrors[0].asked == []


PROGRAM = """
import sys
from hvdtrain.datasets import registry
from hvdtrain.networks.registry import NETWORKS
url, *sums = sys.argv[1:]
published = registry.Published((url,), tuple("0123456789"), dict(zip(registry.IDX_FILES, sums)))
registry.PUBLISHED["mnist"] = published
print(registry.load_dataset("mnist", NETWORKS["lenet"]).fingerprint)
"""


def start(mirror: Mirror) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, mirror.url, *SUMS.values()]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_three_processes_one_downloads(mirrors: tuple[Mirror, Mirror]) -> None:
    mirrors[0].delay_s = 0.2  # so that the others come while it is on its way
    processes = [start(mirrors[0]) for _ in range(3)]
    answers = {process.communicate(timeout=60) for process in processes}
    assert answers == {(load_dataset("mnist", LENET).fingerprint + "\n", "")}
    assert sorted(mirrors[0].asked) == sorted(GZIPPED)


def test_killed_while_it_downloads(mirrors: tuple[Mirror, Mirror], cached: Path) -> None:
    mirrors[0].stop_after, mirrors[0].silent_s = 1000, 20.0
    process = start(mirrors[0])
    wait_for(lambda: mirrors[0].asked, 30)
    time.sleep(0.1)
    process.kill()
    process.communicate()
    assert [path.name for path in cached.iterdir()] == [".lock"]
    (cached / ".writing-killed-later").write_bytes(b"half")
    mirrors[0].stop_after = None
    assert len(load_dataset("mnist", LENET).train_images) == 6
    assert {path.name for path in cached.iterdir()} - {".lock"} == set(GZIPPED)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("rank", "shown"), [("0", True), ("1", False)])
def test_progress_on_rank_0(
    rank: str, shown: bool, mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    load_dataset("mnist", LENET)
    assert ("train-images-idx3-ubyte.gz" in terminal.getvalue()) == shown


# The user's own


def save(folder: Path, name: str = "train.npz", **arrays: object) -> Path:
    np.savez(folder / name, **arrays)
    return folder


BYTES = np.arange(30, dtype=np.uint8).reshape(5, 2, 3)
FLOATS = np.linspace(0, 1, 12).reshape(2, 2, 3)


def own(folder: Path, images: np.ndarray = BYTES, labels: object = (0, 1, 2, 3, 0)) -> Path:
    """A folder with these images to train on, and two good ones to test on."""
    save(folder, images=images, labels=np.asarray(labels))
    return save(folder, "test.npz", images=FLOATS, labels=np.array([3, 0], np.uint8))


def test_pair_of_npz(tmp_path: Path) -> None:
    found = load_dataset(str(own(tmp_path)), SMALL)
    assert found.train_images.dtype == np.uint8 and found.test_images.dtype == np.float32
    assert np.array_equal(found.train_images, BYTES[:, np.newaxis])
    assert np.array_equal(found.test_images, FLOATS[:, np.newaxis].astype(np.float32))
    assert found.test_labels.dtype == np.int64 and found.test_labels.tolist() == [3, 0]
    assert found.classes == tuple("0123") and found.train_images.flags.writeable


@pytest.mark.parametrize("layout", ["channels first", "channels last", "Fortran", "big-endian", "half"])
def test_layouts(layout: str, tmp_path: Path) -> None:
    expected = np.random.default_rng(0).random((5, 3, 32, 32)).astype(np.float16).astype(np.float32)
    images = {
        "channels first": expected,
        "channels last": expected.transpose(0, 2, 3, 1),
        "Fortran": np.asfortranarray(expected),
        "big-endian": expected.astype(">f4"),
        "half": expected.astype(np.float16),
    }[layout]
    save(tmp_path, "all.npz", x_train=images, y_train=np.arange(5), x_test=images[:2], y_test=np.arange(2))
    found = load_dataset(str(tmp_path), CIFAR_LENET)
    assert np.array_equal(found.train_images, expected) and np.array_equal(found.test_images, expected[:2])
    assert found.train_images.flags.c_contiguous and found.train_images.dtype == np.dtype("float32")


def test_one_npz_in_a_folder_or_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"x_train": BYTES, "y_train": np.arange(5) % 4, "x_test": BYTES[:1], "y_test": np.array([1])}
    save(tmp_path, "anything.npz", **arrays)
    by_folder = load_dataset(str(tmp_path), SMALL)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("~/anything.npz", SMALL).fingerprint == by_folder.fingerprint
    save(tmp_path, "second.npz", **arrays)
    refused(tmp_path, str(tmp_path), "holds 2 .npz files", network=SMALL)


def test_own_idx(tmp_path: Path) -> None:
    write(tmp_path, tiny((2, 3)), zipped=False)
    assert load_dataset(str(tmp_path), SMALL).train_images.shape == (6, 1, 2, 3)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train-labels-idx1-ubyte", idx(np.zeros((2, 2))), ["magic number is 00000802, expected 00000801"]),
        ("train-labels-idx1-ubyte", b"", ["magic number is nothing"]),
        ("train-images-idx3-ubyte", b"\0\0\x08\3\0\0", ["is cut short: it ends within its header"]),
        ("train-images-idx3-ubyte", idx(BYTES)[:-1], ["holds 29 values where its header promises 30"]),
        ("train-images-idx3-ubyte", idx(BYTES) + b"\0", ["holds 31 values where its header promises 30"]),
        (
            "train-images-idx3-ubyte",
            b"\0\0\x08\3" + b"\xff" * 12,
            ["holds 0 values where its header promises"],
        ),
    ],
)
def test_own_idx_damaged(tmp_path: Path, file: str, content: bytes, words: list[str]) -> None:
    write(tmp_path, {**tiny((2, 3)), file: content}, zipped=False)
    refused(tmp_path, str(tmp_path / file), *words, "write it anew", network=SMALL)
    (tmp_path / file).unlink()
    refused(tmp_path, str(tmp_path / file), "missing", network=SMALL)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (BYTES, [0, 1, 2], ["train labels are 3 for 5 images"]),
        (BYTES, [0, 1, 2, 3, 4], ["train labels run from 0 to 4", "4 classes, 0 to 3"]),
        (BYTES, [0, 1, 2, 3, -1], ["train labels run from -1 to 3"]),
        (BYTES, np.array([0, 1, 2, 3, 2**64 - 1], np.uint64), ["run from 0 to 18446744073709551615"]),
        (BYTES, [0.0] * 5, ["train labels are of type float64"]),
        (BYTES, [[0]] * 5, ["train labels are of type int64 and shape (5, 1)"]),
        (BYTES[:0], np.zeros(0, int), ["train images have shape (0, 2, 3)", "n at least 1"]),
        (BYTES[0], [0, 1], ["train images have shape (2, 3)"]),
        (np.array(3.0), [0], ["train images have shape ()"]),
        (
            BYTES.transpose(0, 2, 1),
            [0] * 5,
            ["train images are 1x3x2 but the network takes 1x2x3", "bring them"],
        ),
        (BYTES.astype(int), [0] * 5, ["train images are of type int64; give uint8, or floats in [0, 1]"]),
        (BYTES.astype(float), [0] * 5, ["floats from 0 to 29; scale them to [0, 1]"]),
        (FLOATS - 0.5, [0] * 2, ["floats from -0.5 to 0.5"]),
        (np.where(FLOATS > 0.5, np.nan, FLOATS), [0] * 2, ["floats from nan to nan"]),
        (np.where(FLOATS > 0.5, np.inf, FLOATS), [0] * 2, ["floats from 0 to inf"]),
        (FLOATS + 0j, [0] * 2, ["of type complex128"]),
        (np.full((2, 2, 3), "a"), [0] * 2, ["of type <U1"]),
    ],
)
def test_own_arrays_that_do_not_fit(tmp_path: Path, images: np.ndarray, labels: object, words: list[str]) -> None:
    refused(own(tmp_path, images, labels), f"--data {tmp_path}: train", *words, network=SMALL)


def test_test_images_are_checked_too(tmp_path: Path) -> None:
    own(tmp_path)
    save(tmp_path, "test.npz", images=FLOATS, labels=np.array([3, 4]))
    refused(tmp_path, "test labels run from 3 to 4", network=SMALL)


def test_another_model_is_proposed() -> None:
    words = "images are 1x28x28 but cifar_lenet takes 3x32x32; use --model lenet"
    refused("digits", "--data digits: ", words, network=CIFAR_LENET)


class Harm:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harm",)


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own(tmp_path, labels=np.array([Harm()], object))
    refused(tmp_path, str(tmp_path / "train.npz"), "holds labels as pickled objects, which are never loaded")
    (tmp_path / "train.npz").write_bytes(pickle.dumps(Harm()))
    refused(tmp_path, str(tmp_path / "train.npz"), "cannot be read")
    assert not (tmp_path / "harm").exists()


def test_npz_without_the_arrays(tmp_path: Path) -> None:
    path = save(tmp_path, pixels=BYTES) / "train.npz"
    refused(tmp_path, str(path), "holds no array named images (only pixels)", "numpy.savez")
    own(tmp_path)
    (tmp_path / "test.npz").unlink()
    refused(tmp_path, str(tmp_path / "test.npz"), "cannot be read", "No such file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", "text")
    refused(tmp_path, str(path), "holds images, but not as an array")
    path.write_bytes(path.read_bytes()[:-5])
    refused(tmp_path, str(path), "cannot be read")


def test_npz_that_unpacks_to_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "train.npz", images=np.zeros((1000, 28, 28), np.uint8), labels=np.zeros(1000, int))
    monkeypatch.setattr(formats, "MEMORY", 500_000)
    refused(tmp_path, str(tmp_path / "train.npz"), "more than this machine's memory")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fashion_mnist", ["did you mean fashion-mnist?"]),
        ("nowhere", ["no such folder", "digits, synthetic, fashion-mnist, mnist, cifar10"]),
        ("", ["no such folder"]),
        ("~nobody-of-this-name/x", ["no such folder"]),
        ("x\0y", ["no such folder"]),
        ("x" * 5000, ["no such folder"]),
        (".", ["holds 0 .npz files", "train.npz and test.npz"]),
    ],
)
def test_unknown_names(name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(name, *words)


# Arbitrary bytes


def changed(good: bytes) -> st.SearchStrategy[bytes]:
    """A good file with some bytes changed and its end cut off."""
    changes = st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=4)

    def apply(changes: list[tuple[int, int]], length: int) -> bytes:
        content = bytearray(good)
        for position, value in changes:
            content[position] = value
        return bytes(content[:length])

    return st.builds(apply, changes, st.just(len(good)) | st.integers(0, len(good)))


def parses_or_refuses(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            Path(name, file).write_bytes(content)
        try:
            found = load_dataset(name, SMALL)
        except UserError as error:
            assert str(error).startswith((name, f"--data {name}")) and "\n" not in str(error)
        else:
            assert len(found.train_images) == len(found.train_labels)
            assert found.train_images.shape[1:] == SMALL.input_shape


IMAGES = tiny((2, 3))["train-images-idx3-ubyte"]


@QUICK
@given(st.binary(max_size=40) | changed(IMAGES) | st.binary().map(gzip.compress) | changed(gzip.compress(IMAGES)))
def test_any_bytes_as_idx(content: bytes) -> None:
    parses_or_refuses({**tiny((2, 3)), "train-images-idx3-ubyte": content})


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


TEST = npz(images=FLOATS, labels=np.array([3, 0]))


@QUICK
@given(st.binary(max_size=40) | changed(npz(images=BYTES, labels=np.arange(5) % 4)))
def test_any_bytes_as_npz(content: bytes) -> None:
    parses_or_refuses({"train.npz": content, "test.npz": TEST})


HEADERS = (
    st.text("{}()[]'descrshapefortran_order:,<|fiuOVSU0123456789 \n#\\", max_size=60)
    | st.sampled_from(["(" * 5000, "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "0j + 1"])
    | st.builds(
        "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}, }}".format,
        st.sampled_from(["<f4", "|V0", "|S0", "|u1", "M8[s]", "", [("a", "<f4")], ("<f4", (2,)), None]),
        st.booleans(),
        st.lists(st.integers(-2, 2**70), max_size=4).map(tuple) | st.just("x"),
    )
)


@QUICK
@given(HEADERS, st.binary(max_size=40))
def test_any_header_in_npz(header: str, values: bytes) -> None:
    text = header.encode("latin1") + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values)
    parses_or_refuses({"train.npz": file.getvalue(), "test.npz": TEST})
