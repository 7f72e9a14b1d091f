"""Downloads of published files from mirrors, also by several processes at the same time."""

from __future__ import annotations

import gzip
import io
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.data_files import (
    CIFAR,
    MNIST,
    MNIST_GZIP,
    MNIST_SHA256,
    assert_rejected,
    cifar_archive,
    write_files,
)
from support.jobs import wait_for
from support.mirror import Mirror

from hvdtrain.datasets import downloads
from hvdtrain.datasets.built_in import IDX_FILES, PUBLISHED
from hvdtrain.datasets.registry import load_dataset


def test_files_are_downloaded_once(mirrors: tuple[Mirror, Mirror], cached: Path) -> None:
    first = load_dataset("mnist")
    assert first.train.arrays[0].tobytes() == MNIST["train-images-idx3-ubyte"][16:]
    assert sorted(mirrors[0].requested) == sorted(MNIST_GZIP) and mirrors[1].requested == []
    assert {path.name for path in cached.iterdir()} - {".lock"} == set(MNIST_GZIP)
    assert load_dataset("mnist").fingerprint == first.fingerprint
    assert len(mirrors[0].requested) == 4


@pytest.mark.parametrize("fault", ["corrupt", "wrong content", "missing", "cut", "closed"])
def test_next_mirror(fault: str, mirrors: tuple[Mirror, Mirror]) -> None:
    bad, good = mirrors
    if fault == "corrupt":
        bad.files = dict.fromkeys(MNIST_GZIP, b"<html>log in to the hotel network</html>")
    elif fault == "wrong content":
        bad.files = dict.fromkeys(MNIST_GZIP, gzip.compress(b"other"))
    elif fault == "missing":
        bad.files = {}
    elif fault == "cut":
        bad.stop_after = 10
    else:
        bad.server.server_close()
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert sorted(good.requested) == sorted(MNIST_GZIP)


def test_mirror_that_sends_nothing_is_given_up(mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SILENCE_S", 0.2)
    mirrors[0].stop_after, mirrors[0].silent_s = 10, 5.0
    began = time.monotonic()
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert time.monotonic() - began < len(MNIST_GZIP) * mirrors[0].silent_s


def test_slow_mirror_is_given_up(mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "LONGEST_S", -1.0)
    assert_rejected("mnist", "not complete after -1 s")


def test_own_mirror_comes_first(mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    own = mirrors[1]
    own.files = {f"base/mnist/{name}": content for name, content in MNIST_GZIP.items()}
    monkeypatch.setenv("HVDTRAIN_MIRROR", own.url + "base/")
    assert len(load_dataset("mnist").train.arrays[0]) == 6
    assert mirrors[0].requested == [] and len(own.requested) == 4


def test_no_mirror_has_the_file(mirrors: tuple[Mirror, Mirror], cached: Path) -> None:
    for mirror in mirrors:
        mirror.stop_after = 10
    assert_rejected("mnist", "train-images-idx3-ubyte.gz", mirrors[0].url, mirrors[1].url, "HVDTRAIN_DATA")
    assert [len(mirror.requested) for mirror in mirrors] == [2, 2], "each is tried twice"
    assert [path.name for path in cached.iterdir()] == [".lock"], "an incomplete file is left"


def test_a_mirror_s_password_is_in_no_message(
    mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for mirror in mirrors:
        mirror.files = {}
    address = mirrors[1].url.removeprefix("http://")
    monkeypatch.setenv("HVDTRAIN_MIRROR", f"http://ada:correct-horse@{address}?signature=battery")
    text = assert_rejected("mnist", "no mirror has it complete", address.rstrip("/"))
    assert address.rstrip("/") in caplog.text
    assert not any(secret in text + caplog.text for secret in ("ada", "correct-horse", "battery"))


def test_cache_is_not_writable(mirrors: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert_rejected("mnist", "cannot be written", "HVDTRAIN_DATA")


def test_cifar10_is_downloaded_as_an_archive(
    cifar_folder: Path, mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = cifar_archive(cifar_folder, CIFAR, monkeypatch)
    mirrors[0].files = {path.name: path.read_bytes()}
    path.unlink()
    monkeypatch.setitem(PUBLISHED, "cifar10", PUBLISHED["cifar10"]._replace(mirrors=(mirrors[0].url,)))
    assert len(load_dataset("cifar10").train.arrays[0]) == 10
    assert (tmp_path / "cache" / "hvdtrain" / "cifar10" / path.name).is_file()


def test_offline_never_connects(mirrors: tuple[Mirror, Mirror], cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection in spite of --offline")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    write_files(cached, {name: MNIST[name] for name in IDX_FILES[:2]})
    text = assert_rejected("mnist", "--offline", str(cached), mirrors[0].url, *IDX_FILES[2:], offline=True)
    assert "train-" not in text, "these two files exist"
    write_files(cached, MNIST)
    assert len(load_dataset("mnist", offline=True).train.arrays[0]) == 6
    assert mirrors[0].requested == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("rank", "visible"), [("0", True), ("1", False)])
def test_progress_on_rank_0(
    rank: str, visible: bool, mirrors: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_one_of_several_processes_downloads(mirrors: tuple[Mirror, Mirror]) -> None:
    mirrors[0].delay_s = 0.2  # so that the other processes start meanwhile
    processes = [start(mirrors[0]) for _ in range(2)]
    outputs = {process.communicate(timeout=60) for process in processes}
    assert outputs == {(load_dataset("mnist").fingerprint + "\n", "")}
    assert sorted(mirrors[0].requested) == sorted(MNIST_GZIP)


def test_killed_during_a_download(mirrors: tuple[Mirror, Mirror], cached: Path) -> None:
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
