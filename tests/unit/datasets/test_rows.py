"""Data that is read row by row: the same rows from all formats, and invalid input, which is named with file and row."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.row_data import CLASSES, PARTS, WRITERS, arrays, png, rejected, write_images, write_npy

from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.formats.reading import DataChanged
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import RowError
from hvdtrain.datasets.validation import suspicious


@pytest.fixture(params=WRITERS)
def data(request, tmp_path):
    return str(WRITERS[request.param](tmp_path / "data"))


def test_all_formats_have_the_same_rows(data):
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


def test_fingerprint_is_that_of_the_content(data, tmp_path):
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
        at = content.find(images[0].tobytes()) if "train-images" in path.name else -1
        if at < 0 and path.suffix == ".png":
            path.write_bytes(png(255 - np.asarray(Image.open(path))))
        if at >= 0:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        if path.read_bytes() != content:
            break
    else:
        pytest.skip("all bytes of this file are compressed")
    assert load_dataset(data.replace(str(tmp_path), str(copy.parent)), skip_bad_rows=True).fingerprint != first


def test_a_fingerprint_reads_little_of_large_data(tmp_path, monkeypatch):
    reads = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: reads.append(arguments[1]) or pread(*arguments))
    monkeypatch.setattr(reading, "MAX_FILES", 3)
    monkeypatch.setattr(reading, "MAX_BLOCKS", 6)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    names = ["large", *(f"missing-{number}" for number in range(1000))]
    sizes = [1 << 40, *([1] * 1000)]
    first = reading.fingerprint(lambda number: tmp_path / names[number], names, sizes)
    assert reads == [reading.BLOCK] * 2
    assert reading.fingerprint(lambda number: tmp_path / names[number], names, [1 << 40, 2, *sizes[2:]]) != first


def test_formats_are_not_mixed(tmp_path):
    write_npy(tmp_path / "data")
    (tmp_path / "data" / "train").mkdir()
    rejected(tmp_path / "data", "several formats (npy, images)")
    (tmp_path / "empty").mkdir()
    rejected(tmp_path / "empty", "it is empty", "train/CLASS")
    for suffix in (".txt", ".h5", ".tar"):
        (path := tmp_path / "other" / f"data{suffix}").parent.mkdir(exist_ok=True)
        path.touch()
        rejected(path, f"is a {suffix} file, which is not read", "give --data FILE.py:NAME (docs/data.md)")
    rejected(tmp_path / "other", "no data of a known format", "give --data FILE.py:NAME (docs/data.md)")
    (tmp_path / "table.csv").write_text("a,b\n")
    rejected(tmp_path / "table.csv", "table.csv: has no rows below its header")
    (tmp_path / "cut.npz").write_text("PK")
    rejected(tmp_path / "cut.npz", "cut.npz: cannot be read", "numpy.savez")


def test_mixed_colors_need_channels_not_a_size(tmp_path):
    """Also where a size was given."""
    for part, color in (("train/a/0", "L"), ("train/a/1", "RGB"), ("test/a/0", "L")):
        path = tmp_path / "mixed" / f"{part}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(color, (8, 9)).save(path)
    rejected(tmp_path / "mixed", "HEIGHTxWIDTH, or 1x")
    remedy = "give --image-size 1x4x4 for gray or 3x4x4 for color"
    rejected(tmp_path / "mixed", remedy, image_size=(None, 4, 4))
    Image.new("RGB", (8, 9)).save(tmp_path / "mixed" / "test" / "a" / "0.png")
    rejected(tmp_path / "mixed", "--image-size 1x4x4", "3x4x4", image_size=(None, 4, 4))


@pytest.mark.parametrize("name", ["train-images.npy", "test-labels.npy"])
def test_npy_file_is_missing_or_cut(tmp_path, name):
    path = write_npy(tmp_path / "data") / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    rejected(tmp_path / "data", f"{path}: cannot be read (mmap length is greater than")
    path.write_bytes(content[:20])
    rejected(tmp_path / "data", f"{path}: cannot be read")
    path.unlink()
    rejected(tmp_path / "data", f"{path}: missing")


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("train-images.npy", np.zeros((12, 5, 4), np.int32), "(row 0) images are of type int32"),
        ("train-images.npy", np.full((12, 5, 4), 2.0), "(row 0) images are floats from 2 to 2"),
        ("train-images.npy", np.full((12, 5, 4), np.inf), "(row 0) images have NaN or infinite values; correct them"),
        ("train-images.npy", np.asfortranarray(np.zeros((12, 5, 4), np.uint8)), "is in Fortran order"),
        ("train-images.npy", np.array([None] * 12), "Python objects in dtype"),
        ("train-images.npy", np.zeros((12, 5), np.uint8), "the images have shape (12, 5)"),
        ("train-images.npy", np.zeros((12, 6, 4), np.uint8), "train images are 1x6x4, test images 1x5x4"),
        ("train-labels.npy", np.zeros(11, int), "labels are 11 for 12 images"),
        ("train-labels.npy", np.zeros(12), "the labels are of type float64"),
        ("test-labels.npy", np.array([0, 1, 2, 0, 3, 4]), "the label of row 4 is 3; the data has 3 classes"),
    ],
)
def test_npy_file_with_other_content(tmp_path, name, array, text):
    write_npy(tmp_path / "data")
    np.save(tmp_path / "data" / name, array)
    rejected(tmp_path / "data", text)


def test_a_bad_row_among_good_ones_is_named_or_skipped(tmp_path):
    folder = write_npy(tmp_path / "data")
    images = arrays("train")[0].astype(np.float32) / 255
    images[7, 0, 0] = np.nan
    np.save(folder / "train-images.npy", images)
    np.save(folder / "test-images.npy", arrays("test")[0].astype(np.float64) / 255)
    rejected(folder, f"{folder / 'train-images.npy'} (row 7) images have NaN or infinite values; correct")
    source = load_dataset(str(folder), skip_bad_rows=True).train
    found = source.read(np.array([7, 3, 7]))
    assert list(found.bad) == [0, 2] and "(row 7)" in str(found.bad[0])
    assert np.array_equal(found.arrays[0], np.repeat(images[[3], np.newaxis], 3, 0))
    assert found.arrays[1].tolist() == [0, 0, 0]  # the label of row 3
    np.save(folder / "test-images.npy", np.full((6, 5, 4), np.nan))
    rejected(folder, "test: none of the first 6 rows can be read", "test-images.npy (row 0)", skip_bad_rows=True)
    alone = source.read(np.array([7]))
    assert list(alone.bad) == [0] and np.array_equal(alone.arrays[0][0], images[[0]])


def save(image: Image.Image) -> Callable[[Path], None]:
    return lambda path: image.save(path, "PNG")


def cut(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (99, 99), np.uint8)).save(path, "PNG")
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (cut, "cannot be read (image file is truncated"),
        (lambda path: path.write_bytes(b""), "cannot be read as an image (its content has none of the formats"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "cannot be read ([Errno 2] No such file"),
        (save(Image.new("L", (5, 5))), "the image is uint8 of 1x5x5, the first one is uint8 of 1x5x4; give --image"),
        (save(Image.new("RGB", (4, 5))), "the image is uint8 of 3x5x4, the first one is uint8 of 1x5x4"),
    ],
)
def test_image_that_cannot_be_used(tmp_path, break_it, text):
    folder = write_images(tmp_path / "data")
    path = folder / "train" / "bee" / "005.png"
    break_it(path)
    assert isinstance(rejected(folder, f"{path} (row 5): {text}"), RowError)
    found = load_dataset(str(folder), skip_bad_rows=True)
    good = np.delete(np.arange(12), 5)
    assert np.array_equal(found.train[good][0][:, 0], arrays("train")[0][good])
    assert list(found.train.read(np.arange(12)).bad) == [5]


def test_images_are_resized_and_gray_ones_get_colors(tmp_path):
    folder = write_images(tmp_path / "data")
    Image.new("RGB", (40, 30), (255, 0, 100)).save(folder / "train" / "ape" / "000.png")
    rejected(folder, "train images are 3x30x40, test images 3x5x4; resize them to one shape")
    for size, expected in (((None, 5, 4), (3, 5, 4)), ((3, 9, 8), (3, 9, 8)), ((1, 2, 2), (1, 2, 2))):
        found = load_dataset(str(folder), image_size=size)
        assert found.input_shape == expected
        images = found.train[np.arange(12)][0]
        if expected[0] == 3:
            assert (images[0] == np.array([255, 0, 100]).reshape(3, 1, 1)).all()
            assert (images[1:, 0] == images[1:, 1]).all()
    one, other = (load_dataset(str(folder), image_size=(1, side, side)).fingerprint for side in (2, 3))
    assert one != other
    rejected(write_npy(tmp_path / "npy"), "holds no image files, and is not resized", image_size=(None, 5, 4))
    rejected("digits", "--image-size", image_size=(None, 5, 4))


def test_classes_of_both_parts_are_the_same(tmp_path):
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
    for path in (pictures := folder / "train" / "cat").glob("*.png"):
        path.rename(path.with_suffix(".cr2"))
    rejected(folder, f"{pictures}: none of its 5 file(s) is read as an image (.cr2, .txt); save them as .png")
    (folder / "train" / "cat" / "more").mkdir()
    rejected(folder, "cat/more: a folder in the folder of a class")
    shutil.rmtree(folder / "train" / "cat")
    (folder / "train" / "cat").mkdir()
    rejected(folder, "train/cat: holds no image")
    shutil.rmtree(folder / "val")
    (folder / "train" / "cat").rmdir()
    rejected(folder, "has no test part; give --split 0.8/0.1/0.1")
    shutil.rmtree(folder / "train")
    (folder / "train").mkdir()
    rejected(folder, "has no folders of images")


def test_no_class_is_lost_with_bad_rows(tmp_path):
    """With --on-bad-row skip all its rows would have weight 0."""
    folder = write_images(tmp_path / "data")
    bees = sorted((folder / "train" / "bee").iterdir())
    for path in bees[:-1]:
        path.write_bytes(b"")
    assert load_dataset(str(folder), skip_bad_rows=True).classes == CLASSES
    bees[-1].write_bytes(bees[-1].read_bytes()[:60])
    reason = f"{folder}/train/bee: no image of this class can be read, such as {bees[-1]} (row 7): cannot be read"
    rejected(folder, reason, skip_bad_rows=True)
    assert load_dataset(str(folder)).train.forms  # the job ends with the first of these rows


def test_empty_folders_are_a_mistake(tmp_path):
    folder = write_images(tmp_path / "data") / "train"
    for label in CLASSES[1:]:
        shutil.rmtree(folder / label)
        (folder / label).mkdir()
    rejected(folder, f"{folder}/bee: holds no image", split=0.5)
    for label in CLASSES[1:]:
        (folder / label).rmdir()
    assert load_dataset(str(folder), split=0.5).classes == CLASSES[:1]


@pytest.mark.parametrize("kind", ["npy", "images"])
@pytest.mark.parametrize("skip", [False, True])
def test_file_that_changes_during_training(tmp_path, kind, skip):
    """Ends the job also with --on-bad-row skip: no row of such a file can be trusted."""
    folder = Path(str(WRITERS[kind](tmp_path / "data")))
    dataset = load_dataset(str(folder), skip_bad_rows=skip)
    dataset.train[np.arange(12)]
    (path,) = folder.glob({"npy": "train-images.npy", "images": "train/bee/*4.png"}[kind])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataChanged, match=rf"{path.name} changed during training: its size is \d+ bytes, and was \d+"):
        dataset.train[np.arange(12)]
