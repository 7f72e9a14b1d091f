"""The user's own data: .npz and IDX files, paths that are neither, and images and labels that do not fit."""

import pickle

import numpy as np
import pytest
from PIL import Image
from support.data_files import BYTES, FLOATS, idx_bytes, save_npz, tiny_mnist, write_files, write_own
from support.row_data import rejected
from support.untrusted import Harm

import hvdtrain
from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.formats.reading import read_class_names
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.datasets.validation import suspicious, valid_images
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset
from hvdtrain.system import start_folder


@pytest.mark.parametrize("layout", ["channels first", "channels last", "Fortran", "big-endian", "half"])
def test_layouts(layout, tmp_path):
    expected = np.random.default_rng(0).random((5, 3, 32, 32)).astype(np.float16).astype(np.float32)
    images = {
        "channels first": expected,
        "channels last": expected.transpose(0, 2, 3, 1),
        "Fortran": np.asfortranarray(expected),
        "big-endian": expected.astype(">f4"),
        "half": expected.astype(np.float16),
    }[layout]
    save_npz(tmp_path, "all.npz", x_train=images, y_train=np.arange(5), x_test=images[:2], y_test=np.arange(2))
    found = load_dataset(str(tmp_path))
    assert np.array_equal(found.train.arrays[0], expected) and np.array_equal(found.test.arrays[0], expected[:2])
    assert found.train.arrays[0].flags.c_contiguous and found.train.arrays[0].dtype == np.dtype("float32")


def write_images(folder, part, rows):
    for row in range(rows):
        path = folder / part / str(row % 2) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(BYTES[row % 5]).save(path)


def write_table(folder, part, rows):
    lines = "".join(f"{row},{row % 2}\n" for row in range(rows))
    (folder / f"{part}.csv").write_text(f"x,label\n{lines}")


def write_arrays(folder, part, rows):
    np.save(folder / f"{part}-images.npy", BYTES[np.arange(rows) % 5])
    np.save(folder / f"{part}-labels.npy", np.arange(rows) % 2)


def write_archive(folder, part, rows):
    save_npz(folder, f"{part}.npz", images=BYTES[np.arange(rows) % 5], labels=np.arange(rows) % 2)


def write_one_archive(folder, part, rows):
    path, arrays = folder / "all.npz", {f"x_{part}": BYTES[np.arange(rows) % 5], f"y_{part}": np.arange(rows) % 2}
    known = dict(np.load(path)) if path.exists() else {}
    save_npz(folder, "all.npz", **known, **arrays)


def write_code(folder, part, rows):
    with open(folder / "mine.py", "a") as file:
        file.write(f"import numpy as np\ndata = {{**globals().get('data', {{}}), {part!r}: (np.ones(({rows}, 3)), ")
        file.write(f"np.arange({rows}) % 2)}}\n")


LAYOUTS = (write_images, write_table, write_arrays, write_archive, write_one_archive, write_code)


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
@pytest.mark.parametrize("write", LAYOUTS)
def test_validation_rows_beside_train_and_test(write, name, tmp_path):
    for part, rows in {"train": 5, "test": 4, name: 3}.items():
        write(tmp_path, part, rows)
    path = f"{tmp_path}/mine.py:data" if write is write_code else str(tmp_path)
    data = load_dataset(path, as_images=True)
    assert {part: len(source) for part, source in data.parts.items()} == {"train": 5, "validation": 3, "test": 4}
    assert data.evaluated == "validation" and sorted(data.validation[np.arange(3)][1]) == [0, 0, 1]
    with pytest.raises(UserError, match="gives validation rows by itself"):
        load_dataset(path, split="0.9/0.1")


@pytest.mark.parametrize("write", [write_images, write_table, write_arrays, write_archive, write_code])
def test_several_validation_parts_are_an_error(write, tmp_path):
    for part in ("train", "test", "val", "validation"):
        write(tmp_path, part, 3)
    with pytest.raises(UserError, match=r"has several validation parts \(validation, val\); leave one"):
        load_dataset(f"{tmp_path}/mine.py:data" if write is write_code else str(tmp_path))


@pytest.mark.parametrize("write", [write_images, write_table, write_archive, write_code])
def test_validation_rows_without_test_rows_are_these(write, tmp_path):
    for part, rows in {"train": 5, "val": 3}.items():
        write(tmp_path, part, rows)
    data = load_dataset(f"{tmp_path}/mine.py:data" if write is write_code else str(tmp_path), as_images=True)
    assert {part: len(source) for part, source in data.parts.items()} == {"train": 5, "test": 3}


def test_all_parts_have_images_of_one_shape(tmp_path):
    for part in ("train", "test"):
        write_archive(tmp_path, part, 4)
    save_npz(tmp_path, "val.npz", images=BYTES[:2, :, :2], labels=np.arange(2))
    with pytest.raises(UserError, match="train images are 1x2x3, validation images 1x2x2"):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_class_names_of_any_editor(encoding, end, tmp_path):
    """Some write a byte order mark first."""
    (tmp_path / "classes.txt").write_bytes(f"Käse{end}b{end}".encode(encoding))
    assert read_class_names(tmp_path) == ("Käse", "b")


def test_one_npz_in_a_folder_or_by_its_path(tmp_path, monkeypatch):
    arrays = {"x_train": BYTES, "y_train": np.arange(5) % 4, "x_test": BYTES[:1], "y_test": np.array([1])}
    save_npz(tmp_path, "anything.npz", **arrays)
    by_folder = load_dataset(str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("~/anything.npz").fingerprint == by_folder.fingerprint
    save_npz(tmp_path, "second.npz", **arrays)
    rejected(tmp_path, str(tmp_path), "holds no data of a known format (anything.npz, second.npz)")


@pytest.mark.parametrize(
    ("file", "content", "texts"),
    [
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros((2, 2))), ["magic number is 00000802, expected 00000801"]),
        ("train-labels-idx1-ubyte", b"", ["magic number is nothing"]),
        ("train-images-idx3-ubyte", b"\0\0\x08\3\0\0", ["cannot be read"]),
        ("train-images-idx3-ubyte", idx_bytes(BYTES)[:-1], ["cannot reshape array of size 29 into shape (5,2,3)"]),
        ("train-images-idx3-ubyte", idx_bytes(BYTES) + b"\0", ["cannot reshape array of size 31 into shape (5,2,3)"]),
        ("train-images-idx3-ubyte", b"\0\0\x08\3" + b"\xff" * 12, ["cannot reshape array of size 0"]),
    ],
)
def test_own_idx_damaged(tmp_path, file, content, texts):
    write_files(tmp_path, {**tiny_mnist((2, 3)), file: content}, packed=False)
    rejected(tmp_path, str(tmp_path / file), *texts, "write it again")
    (tmp_path / file).unlink()
    rejected(tmp_path, str(tmp_path / file), "missing")


def test_pickles_are_never_loaded(tmp_path):
    harm = Harm(tmp_path / "harm")
    write_own(tmp_path, labels=np.array([harm], object))
    rejected(tmp_path, str(tmp_path / "train.npz"), "Object arrays cannot be loaded", "save numeric")
    (tmp_path / "train.npz").write_bytes(pickle.dumps(harm))
    rejected(tmp_path, str(tmp_path / "train.npz"), "cannot be read")
    assert not (tmp_path / "harm").exists()


def test_npz_without_the_arrays(tmp_path):
    path = save_npz(tmp_path, pixels=BYTES) / "train.npz"
    rejected(tmp_path, str(path), "images is not a file in the archive", "numpy.savez")
    write_own(tmp_path)
    (tmp_path / "test.npz").unlink()
    rejected(tmp_path, str(tmp_path / "test.npz"), "cannot be read", "No such file")
    path.write_bytes(path.read_bytes()[:-5])
    rejected(tmp_path, str(path), "cannot be read")


def test_npz_that_unpacks_to_more_than_memory(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "train.npz", images=np.zeros((1000, 28, 28), np.uint8), labels=np.zeros(1000, int))
    monkeypatch.setattr(reading, "MEMORY", 500_000)
    rejected(tmp_path, str(tmp_path / "train.npz"), "more than this machine's memory")


def test_programs_load_data_and_may_name_it(tmp_path):
    found = hvdtrain.load_dataset(str(write_own(tmp_path)))
    images, labels = found.train[np.array([0])]
    assert images.shape == (1, *found.input_shape) and labels.shape == (1,)
    for options, begin in (({}, "nowhere: no such file"), ({"name": "--data nowhere"}, "--data nowhere: no such")):
        with pytest.raises(UserError, match=f"^{begin}"):
            hvdtrain.load_dataset("nowhere", **options)
    with pytest.raises(UserError, match=r"^--split 80 %: is not a list of one to three shares"):
        hvdtrain.load_dataset("digits", split="80 %")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("fashion_mnist", ["did you mean fashion-mnist?"]),
        ("nowhere", ["no such file or folder", "digits, synthetic, fashion-mnist, mnist, cifar10"]),
        ("", ["no such file or folder"]),
        ("x\0y", ["no such file or folder"]),
        ("x" * 5000, ["no such file or folder"]),
        (".", ["no data of a known format", "train.npz and test.npz"]),
    ],
)
def test_unknown_names(name, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rejected(name, *texts)


OPTIONS = {
    "label": "price",
    "columns": ("a",),
    "target": "regression",
    "scale": "none",
    "weight": "w",
    "image_size": (1, 8, 8),
    "split": "0.8",
    "skip_bad_rows": True,
}


@pytest.mark.parametrize("name", ["chrun.csv", "chrun", "nowhere/churn.csv", "churm.py:data", "~/churn.csv"])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_path_that_is_not_there_is_named_first(tmp_path, monkeypatch, name, option):
    """Whatever else is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(start_folder, "START", str(tmp_path))
    for there in ("churn.csv", "churn.py"):
        (tmp_path / there).touch()
    hint = {"chrun.csv": " (did you mean churn.csv?)", "churm.py:data": " (did you mean churn.py?)"}.get(name, "")
    rejected(name, f"{name}: no such file or folder{hint}", **{option: OPTIONS[option]})


@pytest.mark.parametrize(
    ("images", "labels", "texts"),
    [
        (BYTES, [0, 1, 2], ["train labels are 3 for 5 images"]),
        (BYTES, [0, 1, 2, 3, 100_000], ["the label of row 4 is 100000; there may be 100,000 classes, from 0 on"]),
        (BYTES, [0, 1, 2, 3, -1], ["train: the label of row 4 is -1"]),
        (BYTES, np.array([0, 1, 2, 3, 2**64 - 1], np.uint64), ["the label of row 4 is 18446744073709551615"]),
        (BYTES, [0.0] * 5, ["train: the labels are of type float64"]),
        (BYTES, [[0]] * 5, ["train: the labels are of type int64 and shape (5, 1)"]),
        (BYTES[:0], np.zeros(0, int), ["train images have shape (0, 2, 3)", "n at least 1"]),
        (np.array(3.0), [0], ["train images have shape ()"]),
        (BYTES.astype(int), [0] * 5, ["train images are of type int64; give uint8, or floats in [0, 1]"]),
        (BYTES.astype(float), [0] * 5, ["floats from 0 to 29; scale them to [0, 1]: divide them by 255, or"]),
        (FLOATS - 0.5, [0] * 2, ["floats from -0.5 to 0.5"]),
        (np.where(FLOATS > 0.5, np.nan, FLOATS), [0] * 2, ["have NaN or infinite values, first in row 1; correct"]),
        (np.full((2, 2, 3), "a"), [0] * 2, ["of type <U1"]),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, images, labels, texts):
    rejected(write_own(tmp_path, images, labels), f"{tmp_path}: train", *texts)


def test_parts_fit_together(tmp_path):
    found = load_dataset(str(write_own(tmp_path, labels=[0, 1, 6, 3, 2])))
    assert found.classes == tuple("0123456") and found.input_shape == (1, 2, 3)
    write_own(tmp_path, BYTES.transpose(0, 2, 1))
    rejected(tmp_path, f"{tmp_path}: train images are 1x3x2, test images 1x2x3; resize them")
    save_npz(write_own(tmp_path), "test.npz", images=FLOATS, labels=np.array([3, 4]))
    rejected(tmp_path, "test: the label of row 1 is 4; the data has 4 classes, from 0 on: correct it")


LABELS = np.arange(8) % 4
GOOD = np.linspace(0, 255, 48).astype(np.uint8).reshape(8, 1, 2, 3)


@pytest.mark.parametrize(
    ("images", "labels", "problems"),
    [
        (GOOD, LABELS, []),
        (GOOD / np.float32(255), LABELS, []),
        (GOOD // 255, LABELS, ["no pixel of the train images exceeds 1, and uint8 is divided by 255, so they are "
                               "almost black; multiply them by 255, or store them as float32 in [0, 1]"]),
        (GOOD // 16, LABELS, ["exceeds 15, and uint8 is divided by 255, so they are almost black; multiply them by"]),
        (GOOD / np.float32(255 * 255), LABELS, ["exceeds 0.0039, so they are almost black; scale them to [0, 1] once"]),
        (np.zeros_like(GOOD), LABELS, ["all pixels of the train images are 0"]),
        (np.ones((8, 1, 2, 3), np.float32), LABELS, ["all pixels of the train images are 1"]),
        (GOOD, np.full(8, 3), ["all train labels are 3", "no train label is 0, 1, 2, but test labels are"]),
        (GOOD, LABELS % 3, ["the train labels have 3 of 4 classes", "no train label is 3"]),
    ],
)  # fmt: skip
def test_data_that_is_probably_wrong(images, labels, problems):
    found = suspicious(Dataset("mine", ArraySource(images, labels), ArraySource(GOOD, LABELS), tuple("0123")))
    assert len(found) == len(problems), found
    for problem, text in zip(problems, found, strict=True):
        assert text.startswith("--data mine: ") and problem in text


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(5, 5), (20, 18), (32, 8)])
def test_few_channels_may_be_last(channels, size):
    last = np.random.default_rng(0).integers(0, 255, (3, *size, channels), np.uint8)
    first = np.ascontiguousarray(last.transpose(0, 3, 1, 2))
    for images in (first, last):
        np.testing.assert_array_equal(valid_images("train", images), first)


@pytest.mark.parametrize(
    ("shape", "warned"),
    [((20, 18, 5), 1), ((28, 28, 12), 1), ((512, 7, 7), 0), ((16, 4, 4), 0), ((6, 28, 28), 0), ((4, 8, 2), 0)],
)
def test_images_whose_channels_were_probably_last(shape, warned):
    images = valid_images("train", np.linspace(0, 255, 8 * np.prod(shape)).astype(np.uint8).reshape(8, *shape))
    source = ArraySource(images, LABELS)
    assert images.shape[1:] == shape
    assert len(suspicious(Dataset("mine", source, source, tuple("0123")))) == warned
