"""Data that is read row by row: the same rows from all formats, and invalid input, which is named with file and row."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from support.row_data import (
    CLASSES,
    PARTS,
    WRITERS,
    arrays,
    png,
    write_chunks,
    write_images,
    write_npy,
    write_python,
    write_shard,
    write_tar,
)

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.sources import files, tar_shards
from hvdtrain.datasets.sources.rows import DataChanged, RowError
from hvdtrain.datasets.validation import suspicious
from hvdtrain.errors import UserError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=WRITERS)
def data(request, tmp_path) -> str:
    return str(WRITERS[request.param](tmp_path / "data"))


def rejected(data: object, *texts: str, **options: object) -> UserError:
    """Loading or reading the data fails with one line that contains these texts."""
    with pytest.raises(UserError) as caught:
        dataset = load_dataset(str(data), **options)
        for source in (dataset.train, dataset.test):
            source[np.arange(len(source))]
    text = str(caught.value)
    assert "\n" not in text and caught.value.remedy, text
    for expected in texts:
        assert expected in text, text
    return caught.value


def test_all_formats_have_the_same_rows(data: str) -> None:
    found = load_dataset(data)
    assert found.classes == CLASSES and found.input_shape == (1, 5, 4)
    for part, source in (("train", found.train), ("test", found.test)):
        images, labels = arrays(part)
        assert len(source) == PARTS[part]
        for rows in (np.arange(len(labels)), np.array([4, 5, 0, 0, 3]), np.array([2])):
            read, read_labels = source[rows]
            assert read.dtype == np.uint8 and read.flags.c_contiguous and read.flags.writeable
            assert np.array_equal(read[:, 0], images[rows])
            assert read_labels.dtype == np.int64 and np.array_equal(read_labels, labels[rows])
    assert suspicious(found) == []


def test_fingerprint_is_that_of_the_content(data: str, tmp_path: Path) -> None:
    first = load_dataset(data).fingerprint
    assert load_dataset(data).fingerprint == first
    if data.endswith(".py:source"):
        return  # it has its own
    copy = tmp_path / "copy" / "data"
    shutil.copytree(tmp_path / "data", copy)  # with new times
    if ":" in data:
        (copy / "mine.py").write_text((copy / "mine.py").read_text().replace(str(tmp_path / "data"), str(copy)))
    assert load_dataset(data.replace(str(tmp_path), str(copy.parent))).fingerprint == first
    images = arrays("train")[0]
    for path in sorted(path for path in copy.rglob("*") if path.is_file() and "classes" not in path.name):
        content = path.read_bytes()
        at = content.find(images[0].tobytes()) if ".h5" in path.name or "train-images" in path.name else -1
        if at < 0 and path.suffix == ".png":
            path.write_bytes(png(255 - np.asarray(Image.open(path))))
        elif at < 0 and path.suffix == ".tar":
            at = content.find(b"\x89PNG") + 50  # within the pixels
        if at >= 0:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        if path.read_bytes() != content:
            break
    else:
        pytest.skip("all bytes of this file are compressed")
    assert load_dataset(data.replace(str(tmp_path), str(copy.parent)), skip_bad_rows=True).fingerprint != first


def test_a_fingerprint_reads_little_of_large_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: reads.append(arguments[1]) or pread(*arguments))
    monkeypatch.setattr(files, "MOST_FILES", 3)
    monkeypatch.setattr(files, "MOST_BLOCKS", 6)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    names = ["large", *(f"missing-{number}" for number in range(1000))]
    sizes = [1 << 40, *([1] * 1000)]
    first = files.fingerprint(lambda number: tmp_path / names[number], names, sizes)
    assert reads == [files.BLOCK] * 2
    assert files.fingerprint(lambda number: tmp_path / names[number], names, [1 << 40, 2, *sizes[2:]]) != first


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    write_npy(tmp_path / "data")
    (tmp_path / "data" / "train").mkdir()
    rejected(tmp_path / "data", "several formats (npy, images)")
    (tmp_path / "empty").mkdir()
    rejected(tmp_path / "empty", "holds 0 .npz files, and no other data", "train/CLASS")
    rejected(tmp_path / "data" / "classes.txt", "classes.txt: cannot be read")


@pytest.mark.parametrize("name", ["train-images.npy", "test-labels.npy"])
def test_npy_file_is_missing_or_cut(tmp_path: Path, name: str) -> None:
    path = write_npy(tmp_path / "data") / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    rejected(tmp_path / "data", f"{path}: is truncated: it holds {len(content) - 1} bytes, its header says")
    path.write_bytes(content[:20])
    rejected(tmp_path / "data", f"{path}: cannot be read")
    path.unlink()
    rejected(tmp_path / "data", f"{path}: missing")


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("train-images.npy", np.zeros((12, 5, 4), np.int32), "(row 0) images are of type int32"),
        ("train-images.npy", np.full((12, 5, 4), 2.0), "(row 0) images are floats from 2 to 2"),
        ("train-images.npy", np.asfortranarray(np.zeros((12, 5, 4), np.uint8)), "is in Fortran order"),
        ("train-images.npy", np.array([None] * 12), "holds pickled objects"),
        ("train-images.npy", np.zeros((12, 5), np.uint8), "the images have shape (12, 5)"),
        ("train-images.npy", np.zeros((12, 6, 4), np.uint8), "train images are 1x6x4, test images 1x5x4"),
        ("train-images.npy", np.zeros((0, 5, 4), np.uint8), "the images have shape (0, 5, 4)"),
        ("train-labels.npy", np.zeros(11, int), "11 labels for the 12 images"),
        ("train-labels.npy", np.zeros(12), "the labels are of type float64"),
        ("test-labels.npy", np.array([0, 1, 2, 0, 3, 4]), "the label of row 4 is 3; the data has 3 classes"),
        ("train-labels.npy", np.array([0] * 11 + [-1]), "the label of row 11 is -1"),
    ],
)
def test_npy_file_with_other_content(tmp_path: Path, name: str, array: np.ndarray, text: str) -> None:
    write_npy(tmp_path / "data")
    np.save(tmp_path / "data" / name, array)
    rejected(tmp_path / "data", text)


def test_a_bad_row_among_good_ones_is_named_or_skipped(tmp_path: Path) -> None:
    folder = write_npy(tmp_path / "data")
    images = arrays("train")[0].astype(np.float32) / 255
    images[7, 0, 0] = np.nan
    np.save(folder / "train-images.npy", images)
    np.save(folder / "test-images.npy", arrays("test")[0].astype(np.float64) / 255)
    rejected(folder, f"{folder / 'train-images.npy'} (row 7) images are floats from nan")
    source = load_dataset(str(folder), skip_bad_rows=True).train
    found = source.read(np.array([7, 3, 7]))
    assert list(found.bad) == [0, 2] and "(row 7)" in str(found.bad[0])
    assert np.array_equal(found.arrays[0], np.repeat(images[[3], np.newaxis], 3, 0))
    assert found.arrays[1].tolist() == [0, 0, 0]  # the label of row 3
    np.save(folder / "test-images.npy", np.full((6, 5, 4), np.nan))
    rejected(folder, "test: none of the first 6 rows can be read", "test-images.npy (row 0)", skip_bad_rows=True)
    alone = source.read(np.array([7]))
    assert list(alone.bad) == [0] and not alone.arrays[0].any()


def save(image: Image.Image) -> Callable[[Path], None]:
    return lambda path: image.save(path, "PNG")


def cut(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (99, 99), np.uint8)).save(path, "PNG")
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (cut, "cannot be read (image file is truncated"),
        (lambda path: path.write_bytes(b""), "cannot be read (cannot identify image file"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "cannot be read ([Errno 2] No such file"),
        (
            save(Image.new("L", (5, 5))),
            "the image is uint8 of 1x5x5, the first one is uint8 of 1x5x4; give --image-size",
        ),
        (save(Image.new("RGB", (4, 5))), "the image is uint8 of 3x5x4, the first one is uint8 of 1x5x4"),
    ],
)
def test_image_that_cannot_be_used(tmp_path: Path, break_it: Callable[[Path], object], text: str) -> None:
    folder = write_images(tmp_path / "data")
    path = folder / "train" / "bee" / "005.png"
    break_it(path)
    assert isinstance(rejected(folder, f"{path} (row 5): {text}"), RowError)
    found = load_dataset(str(folder), skip_bad_rows=True)
    good = np.delete(np.arange(12), 5)
    assert np.array_equal(found.train[good][0][:, 0], arrays("train")[0][good])
    assert list(found.train.read(np.arange(12)).bad) == [5]


def test_images_are_resized_and_gray_ones_get_colors(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data")
    Image.new("RGB", (40, 30), (255, 0, 100)).save(folder / "train" / "ape" / "000.png")
    rejected(
        folder, "train images are 3x30x40, test images 3x5x4; resize them to one shape, image files by --image-size"
    )
    for size, expected in (((None, 5, 4), (3, 5, 4)), ((3, 9, 8), (3, 9, 8)), ((1, 2, 2), (1, 2, 2))):
        found = load_dataset(str(folder), image_size=size)
        assert found.input_shape == expected
        images = found.train[np.arange(12)][0]
        if expected[0] == 3:
            assert (images[0] == np.array([255, 0, 100]).reshape(3, 1, 1)).all()
            assert (images[1:, 0] == images[1:, 1]).all()
    one, other = (load_dataset(str(folder), image_size=(1, side, side)).fingerprint for side in (2, 3))
    assert one != other
    rejected(write_npy(tmp_path / "npy"), "holds arrays, which are not resized", image_size=(None, 5, 4))
    rejected("digits", "--image-size", image_size=(None, 5, 4))


def test_classes_of_both_parts_are_the_same(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data")
    (folder / "test" / "dog").mkdir()
    rejected(folder, f"{folder / 'train' / 'dog'}: no such folder, but test has this class")
    (folder / "test" / "dog").rmdir()
    shutil.rmtree(folder / "test" / "cat")
    rejected(folder, f"{folder / 'test' / 'cat'}: no such folder, but train has this class")
    (folder / "test" / "cat").mkdir()
    assert len(load_dataset(str(folder)).test) == 4
    (folder / "test").rename(folder / "val")
    assert len(load_dataset(str(folder)).test) == 4
    (folder / "train" / "cat" / "notes.txt").touch()
    (folder / "train" / "cat" / ".hidden").touch()
    (advice,) = suspicious(load_dataset(str(folder)))[-1:]
    assert "1 file(s) are ignored" in advice
    (folder / "train" / "cat" / "more").mkdir()
    rejected(folder, "cat/more: a folder in the folder of a class")
    shutil.rmtree(folder / "train" / "cat")
    (folder / "train" / "cat").mkdir()
    rejected(folder, "train/cat: holds no image")
    shutil.rmtree(folder / "val")
    rejected(folder, "has a folder train, but neither test nor val")


def test_hdf5_without_what_it_needs(tmp_path: Path) -> None:
    path = write_chunks(tmp_path / "data") / "data.h5"
    content = path.read_bytes()

    def change(name: str, value: object, text: str) -> None:
        path.unlink()  # HDF5 still has the one before
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            del file[name]
            if value is not None:
                file[name] = value
        rejected(tmp_path / "data", str(path), text)

    change("test/labels", None, "holds no data set test/labels")
    change("train", None, "holds no data set train/images (only classes, test)")
    change("train/labels", np.zeros(11, int), "11")
    change("train/labels", np.full(12, 3), "the label of row 0 is 3; the data has 3 classes")
    change("train/images", np.array([b"a"] * 12), "has train/images of type |S1")
    change("classes", np.arange(3), "cannot be read")
    change("classes", ["a", "b", "a"], "'a' occurs twice, as class 0 and 2")
    path.unlink()
    path.write_bytes(content[: len(content) // 2])
    rejected(tmp_path / "data", f"{path}: cannot be read", "truncated file")
    path.unlink()
    path.write_bytes(b"no HDF5")
    rejected(tmp_path / "data", f"{path}: cannot be read")


def test_damaged_chunk_is_a_bad_row(tmp_path: Path) -> None:
    path = write_chunks(tmp_path / "data") / "data.h5"
    with h5py.File(path) as file:
        chunk = file["train/images"].id.get_chunk_info(1)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + 20] = bytes(20)
    path.write_bytes(content)
    rejected(path, f"{path}: train/images (row 5): cannot be read")
    assert list(load_dataset(str(path), skip_bad_rows=True).train.read(np.arange(12)).bad) == [5, 6, 7, 8, 9]


ROW = {"1.png": png(np.zeros((5, 4), np.uint8)), "1.cls": b"0"}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"1.png": ROW["1.png"]}, "has 1 images and 0 .cls files of 1"),
        ({"1.cls": b"0"}, "has 0 images and 1 .cls files of 1"),
        ({**ROW, "1.jpg": b""}, "has 2 images and 1 .cls files of 1"),
        ({"1.cls": b"0", "2.cls": b"0", "1.png": b"", "2.png": b""}, "has 0 images and 1 .cls files of 1"),
        ({**ROW, "1.cls": b"ape"}, "has the label 'ape' in 1.cls"),
        ({**ROW, "1.cls": b"3"}, "the label of row 0 is 3; the data has 3 classes"),
        ({**ROW, "1.png": b"no image"}, "train-000000.tar: 1 (row 0): cannot be read"),
        ({"1.npy": b"\x93NUMPY", "1.cls": b"0"}, "train-000000.tar: 1 (row 0): cannot be read"),
        ({}, "holds no rows"),
    ],
)
def test_shard_with_incomplete_rows(tmp_path: Path, members: dict[str, bytes], text: str) -> None:
    folder = write_tar(tmp_path / "data")
    write_shard(folder / "train-000000.tar", members)
    rejected(folder, str(folder / "train-000000.tar"), text)


@pytest.mark.parametrize("length", [0, 100, 600, 1024, 5000, -10240])
def test_shard_that_is_cut(tmp_path: Path, length: int) -> None:
    """At any place, also in a header and between two members."""
    path = write_tar(tmp_path / "data") / "train-000001.tar"
    path.write_bytes(path.read_bytes()[:length])
    assert re.search(r"is truncated or damaged at byte|cannot be read", str(rejected(tmp_path / "data", str(path))))


def test_shards_of_one_part_only(tmp_path: Path) -> None:
    folder = write_tar(tmp_path / "data")
    for path in folder.glob("test-*"):
        path.unlink()
    rejected(folder, "no shards of the other part")


def test_index_is_made_once_and_again_for_a_shard_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, scanned = write_tar(tmp_path / "data"), []
    scan = tar_shards._scan
    monkeypatch.setattr(tar_shards, "_scan", lambda shard: scanned.append(shard.path.name) or scan(shard))

    def load() -> list[str]:
        scanned.clear()
        dataset = load_dataset(str(folder))
        dataset.train[np.arange(len(dataset.train))]
        return scanned

    assert len(load()) == 5 and load() == []
    os.utime(folder / "train-000001.tar", (1, 1))
    assert load() == ["train-000001.tar"] and load() == []
    (folder / tar_shards.INDEX).write_bytes(b"PK damaged")
    assert len(load()) == 5
    (folder / tar_shards.INDEX).unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(load()) == 5 and load() == []
    assert not (folder / tar_shards.INDEX).exists() and list((tmp_path / "cache").rglob("*.npz"))


@pytest.mark.parametrize("kind", ["npy", "images", "hdf5", "chunks", "tar"])
@pytest.mark.parametrize("skip", [False, True])
def test_file_that_changes_during_training(tmp_path: Path, kind: str, skip: bool) -> None:
    """Ends the job also with --on-bad-row skip: no row of such a file can be trusted."""
    folder = Path(str(WRITERS[kind](tmp_path / "data")))
    dataset = load_dataset(str(folder), skip_bad_rows=skip)
    dataset.train[np.arange(12)]
    pattern = {"npy": "train-images.npy", "images": "train/bee/*4.png", "tar": "train-000000.tar"}.get(kind, "data.h5")
    (path,) = folder.glob(pattern)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataChanged, match=rf"{path.name} changed during training: its size is \d+ bytes, and was \d+"):
        dataset.train[np.arange(12)]


def test_python_objects(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert load_dataset(write_python(data, "source")).train.fingerprint == "mine"
    assert load_dataset(write_python(data, "arrays")).classes == CLASSES
    assert load_dataset(write_python(data, "arrays")).fingerprint
    random = write_python(data, "random")
    assert load_dataset(random).fingerprint == load_dataset(random).fingerprint
    assert load_dataset(random).fingerprint != load_dataset(write_python(data, "map_style")).fingerprint
    error = rejected(write_python(data, "broken"), "mine.py:broken: train (row 4): cannot be read (no such file)")
    assert isinstance(error, RowError)
    rejected(write_python(data, "nothing"), "mine.py:nothing: is of type int; return (train, test)")
    rejected(write_python(data, "fails"), "mine.py:fails: ZeroDivisionError: division by zero")
    rejected(write_python(data, "unnamed"), "the number of classes is not known; return (train, test, classes)")
    rejected(write_python(data, "map_stile"), "has no map_stile (did you mean map_style?)")
    rejected(tmp_path / "no.py:name", "no.py")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("3", "is of type int; return a tuple of image and label"),
        ("(np.zeros((5, 4), np.uint8), 1.5)", "has a label of type float64"),
        ("(np.zeros((5, 4), np.uint8), 3)", "the label is 3, and the data has 3 classes, from 0 on"),
        ("(np.zeros((5, 5), np.uint8), 0)", "the image is uint8 of 1x5x5, the first one is uint8 of 1x5x4"),
        ("(np.zeros((5, 4), np.float32), 0)", "the image is float32 of 1x5x4, the first one is uint8"),
        ("(np.zeros(4, np.uint8), 0)", "the image has shape (4,)"),
    ],
)
def test_row_of_a_python_object_that_is_unlike_the_others(tmp_path: Path, item: str, text: str) -> None:
    reference = write_python(tmp_path / "data")
    path = tmp_path / "data" / "mine.py"
    method = f"def __getitem__(self, row):\n        return {item} if row == 3 else super().__getitem__(row)"
    code = f"\nclass Odd(MapStyle):\n    {method}\n"
    path.write_text(f"{path.read_text()}{code}\ndata = Odd('train'), MapStyle('test')\n")
    rejected(reference.replace("map_style", "data"), "train (row 3): ", text)


def test_rows_of_a_file_larger_than_the_memory(tmp_path: Path) -> None:
    """A sparse file of 8 TiB."""
    rows = (8 << 40) // (28 * 28)
    for part, count in (("train", rows), ("test", 10)):
        with open(tmp_path / f"{part}-images.npy", "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, 28, 28)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + count * 28 * 28)
    assert (tmp_path / "train-images.npy").stat().st_blocks < 1000
    images = load_images(tmp_path / "train-images.npy")
    assert len(images) == rows
    assert images[np.array([rows - 1, 0, rows // 2])].shape == (3, 28, 28)


def load_images(path: Path) -> files.FileArray:
    from hvdtrain.datasets.sources.npy_files import open_npy

    return open_npy(path)
