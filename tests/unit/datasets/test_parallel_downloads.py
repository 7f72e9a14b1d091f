"""Several processes that download at the same time, and one that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from support.data_files import MNIST_GZIP, MNIST_SHA256
from support.jobs import wait_for
from support.mirror import Mirror

from hvdtrain.datasets.registry import load_dataset

PROGRAM = """
import sys
from hvdtrain.datasets import registry
from hvdtrain.datasets.published import IDX_FILES, PUBLISHED, Published
url, *sums = sys.argv[1:]
PUBLISHED["mnist"] = Published((url,), tuple("0123456789"), dict(zip(IDX_FILES, sums)))
print(registry.load_dataset("mnist").fingerprint)
"""


def start(mirror: Mirror) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, mirror.url, *MNIST_SHA256.values()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_one_of_several_processes_downloads(mirrors: tuple[Mirror, Mirror]) -> None:
    mirrors[0].delay_s = 0.2  # so that the other processes start meanwhile
    processes = [start(mirrors[0]) for _ in range(3)]
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
