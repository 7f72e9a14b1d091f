"""Training on data that is read row by row: resuming, bad rows, files that change, and data larger than the memory.

Processes are two ranks that share the images, or that all end because of a row of one, and a limit of memory.
"""

import os
import re
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.in_process import train_here
from support.jobs import distance, launcher, newest, result, run, train_several, wait_for_a_step
from support.stack import FASTEST

from hvdtrain.datasets.built_in import digits
from hvdtrain.datasets.formats.reading import DataChanged

CLASSES = ("one", "three", "two")
LENET = ("--image-size", "28x28", "--batch-size", "8", "--log-every", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with images of digits; row 7 of the training data is truncated."""
    folder = tmp_path_factory.mktemp("images")
    images, labels, *_ = digits()
    for name, label in (("one", 1), ("two", 2), ("three", 3)):
        for number, image in enumerate(images[labels == label][:20]):
            inside = folder / "data" / ("test" if number % 5 == 0 else "train") / name
            inside.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((20 + number, 20)).save(inside / f"{number:02}.jpg")
    bad = sorted((folder / "data" / "train" / "one").iterdir())[7]
    bad.write_bytes(bad.read_bytes()[:200])
    return folder


def test_image_folder_on_two_ranks_resumes_and_skips_a_row(folder: Path) -> None:
    options = ("--data", "data", *LENET, "--on-bad-row", "skip", "--epochs", "2")
    runs = {
        "whole": options,
        "part": (*options, "--max-steps", "8"),
        "resumed": (*options, "--resume", "runs/part", "--max-steps", "0", "--workers", "2"),
    }
    found = train_several(folder, FASTEST, runs, "local", 2)
    whole, resumed = (newest(found / name) for name in ("whole", "resumed"))
    assert whole.position == resumed.position and whole.position.step == 12
    assert distance(whole.weights, resumed.weights) == 0
    assert whole.classes == CLASSES
    ended = result(found / "whole")
    assert (ended["bad_rows"], ended["bad_test_rows"]) == (1, 0)
    assert list(ended["per_class_accuracy"]) == list(CLASSES)
    assert 0 <= ended["data_wait_share"] <= 1
    log = "".join((found / "whole" / "logs" / f"rank-{rank}.log").read_text() for rank in range(2))
    named = re.findall(r"WARNING skipped a row of train: data/train/one/\d+\.jpg \(row 7\): cannot be read", log)
    assert 1 <= len(named) <= 2, "each rank names it once"
    assert "skipped 1 bad train row(s) and 0 of test" in log
    alone = train_here(folder, FASTEST, *options, "--workers", "0", "--name", "alone")
    assert distance(whole.weights, newest(alone).weights) < 1e-4, "the rule holds for any number of ranks"


def test_bad_row_ends_all_ranks_with_one_line(folder: Path) -> None:
    command = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", "--data", "data", *LENET, "--name", "stop", "--epochs", "1"]
    status, output = run([*launcher("local", 2), *command], folder)
    assert status == 2, output
    (line,) = (line for line in output.splitlines() if "row 7" in line)
    assert re.search(r"rank [01].*: data/train/one/\d+\.jpg \(row 7\): cannot be read \(.*runcated", line)
    assert "on-bad-row skip" in line and "Traceback" not in output


def test_file_that_changes_ends_the_job_and_its_checkpoints_stay(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 4000), ("test", 10)):
        np.save(tmp_path / f"{part}-images.npy", rng.integers(0, 256, (count, 28, 28), np.uint8))
        np.save(tmp_path / f"{part}-labels.npy", np.arange(count) % 10)
    images, folder = tmp_path / "train-images.npy", tmp_path / "runs" / "run"

    def truncate() -> None:
        wait_for_a_step(folder)
        os.truncate(images, images.stat().st_size - 1000)

    threading.Thread(target=truncate).start()
    changed = r"train-images\.npy changed during training: its size is \d+ bytes, and was \d+"
    with pytest.raises(DataChanged, match=changed) as ended:
        options = ("--data", str(tmp_path), "--epochs", "999", "--checkpoint-every", "1", "--log-every", "1")
        train_here(tmp_path, FASTEST, *options)
    assert ended.value.exit_status == 2 and ended.value.remedy and newest(folder).position.step > 0


NETWORK = """
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Dense, Flatten, Pool
small = Network((Pool("average", 64), Flatten(), Dense(CLASSES)))
"""
SIDE = 256


def write_sparse(folder: Path, size: int) -> int:
    """.npy files with training images of `size` bytes, which take no space on the disk; returns their number."""
    (folder / "net.py").write_text(NETWORK)
    (folder / "classes.txt").write_text("\n".join("abc"))
    rows = size // SIDE**2
    for part, count in (("train", rows), ("test", 10)):
        with open(folder / f"{part}-images.npy", "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, SIDE, SIDE)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + count * SIDE**2)
        np.save(folder / f"{part}-labels.npy", (np.arange(count) % 3).astype(np.uint8))
    return rows


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_file_larger_than_the_memory(tmp_path: Path) -> None:
    memory, before = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), peak_mb()
    rows = write_sparse(tmp_path, 2 * memory)
    options = ("--data", str(tmp_path), "--model", "net.py:small", "--max-steps", "20")
    ended = result(train_here(tmp_path, "torch", *options))
    assert ended["steps"] == 20 and rows * SIDE**2 > memory
    assert ended["peak_rss_mb"] == pytest.approx(peak_mb(), abs=50) and peak_mb() - before < 1024
