"""Data from the user's Python code, and image files: read right, or rejected in one sentence."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.row_data import CLASSES, rejected, write_python

from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import RowError
from hvdtrain.datasets.validation import advice
from hvdtrain.errors import MissingPackage, UserError


def test_python_objects(tmp_path):
    data = tmp_path / "data"
    assert load_dataset(write_python(data, "source")).train.fingerprint == "mine"
    assert load_dataset(write_python(data, "arrays")).classes == CLASSES
    assert load_dataset(write_python(data, "arrays")).fingerprint
    random = write_python(data, "random")
    assert load_dataset(random).fingerprint == load_dataset(random).fingerprint
    assert load_dataset(random).fingerprint != load_dataset(write_python(data, "map_style")).fingerprint
    place = "mine.py:broken: train (row 4)"
    error = rejected(write_python(data, "broken"), f"{place}: cannot be read (ValueError: no such file)")
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
        ("(np.zeros(4, np.uint8), 0)", "the image is float32 of 1x1x4, the first one is uint8 of 1x5x4"),
    ],
)
def test_row_of_a_python_object_that_is_unlike_the_others(tmp_path, item, text):
    reference = write_python(tmp_path / "data")
    path = tmp_path / "data" / "mine.py"
    method = f"def __getitem__(self, row):\n        return {item} if row == 3 else super().__getitem__(row)"
    code = f"\nclass Odd(MapStyle):\n    {method}\n"
    path.write_text(f"{path.read_text()}{code}\ndata = Odd('train'), MapStyle('test')\n")
    rejected(reference.replace("map_style", "data"), "train (row 3): ", text)


OBJECTS = """
import numpy as np
import hvdtrain

x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
z = x[:, 0] * 3
class Tensor:
    def __init__(self, array): self.numpy = lambda: array
    def __array__(self, *given): return self.numpy()
class Rows:
    def __init__(self, *arrays): self.arrays = arrays
    def __len__(self): return 20
    def __getitem__(self, row):
        if row >= 20: raise IndexError
        return {"input": self.arrays[0][row], "label": self.arrays[1][row]}
class Stream:
    def __iter__(self): return zip(x[:20], y[:20])
    def __len__(self): return 20
def arrays(): return (x[:20], y[:20]), (x[20:], y[20:])
def one(): return x, y
def three(): return (x[:20], y[:20]), (x[20:30], y[20:30]), (x[30:], y[30:])
def named(): return *three(), ["no", "yes"]
def numbered(): return *arrays(), range(2)
def indexed(): return *arrays(), {"yes": 1, "no": 0}
def by_number(): return *arrays(), {1: "yes", 0: "no"}
def in_a_set(): return *arrays(), {"yes", "no"}
def beside(): return dict(zip(("train", "test"), arrays()), classes=["no", "yes"])
def counted(): return *arrays(), y.max() + 1
def counted_by_an_array(): return *arrays(), np.array(2)
def parts(): return dict(zip(("train", "validation", "test"), three()))
def tensors(): return (Tensor(x[:20]), Tensor(y[:20])), (Tensor(x[20:]), Tensor(y[20:]))
def lists(): return [[x[:20], y[:20]], [x[20:], y[20:]]]
def pairs(): return list(zip(x[:20], y[:20])), list(zip(x[20:], y[20:])), 2
def rows(): return Rows(x, y), Rows(x[20:], y[20:]), 2
def stream(): return Stream(), Stream(), 2
def numbers(): return (x[:20], z[:20]), (x[20:], z[20:])
def numbers_without_classes(): return *numbers(), ()
def rows_of_numbers(): return Rows(x, z), Rows(x[20:], z[20:])
def loaded(): return hvdtrain.load_dataset("digits")
def too_many(): return (x, x, y, y), (x, x, y, y)
def nan(): return (np.where(x > 2, np.nan, x), y), (x, y)
def two_numbers(): return (x, np.stack([z, z], 1)), (x, np.stack([z, z], 1))
"""


NAMED = "named", "indexed", "by_number", "in_a_set", "beside"


@pytest.mark.parametrize(
    "name",
    [
        *("arrays", "one", "three", "named", "numbered", "indexed", "by_number", "in_a_set", "beside", "counted"),
        *("counted_by_an_array", "parts", "tensors", "lists", "pairs", "rows", "stream"),
    ],
)
def test_all_that_a_task_takes(tmp_path, name):
    (tmp_path / "mine.py").write_text(OBJECTS)
    data = load_dataset(f"{tmp_path}/mine.py:{name}", split=0.5 if name == "one" else "", as_images=True)
    inputs, labels = data.train[np.arange(10)]
    assert (inputs.shape, inputs.dtype, labels.dtype) == ((10, 1, 1, 3), np.float32, np.int64)
    assert data.classes == (("no", "yes") if name in NAMED else ("0", "1"))
    assert (data.validation is not None) == (name in ("three", "named", "parts"))
    if name not in ("pairs", "rows", "stream"):
        assert any("rows are float64, and become float32" in sentence for sentence in advice(data))


def test_numbers_and_data_that_was_loaded(tmp_path):
    (tmp_path / "mine.py").write_text(OBJECTS)
    for name in ("numbers", "numbers_without_classes", "rows_of_numbers"):
        data = load_dataset(f"{tmp_path}/mine.py:{name}", as_images=True)
        assert data.classes == () and data.train[np.arange(3)][1].dtype == np.float32
    assert load_dataset(f"{tmp_path}/mine.py:loaded").fingerprint == load_dataset("digits").fingerprint
    (tmp_path / "rows.csv").write_text("a,label\n" + "1.5,no\n2.5,yes\n" * 4)
    (tmp_path / "table.py").write_text(
        f"import hvdtrain\ndef rows(): return hvdtrain.load_dataset('{tmp_path}/rows.csv', split=0.5)\n"
    )
    assert load_dataset(f"{tmp_path}/table.py:rows").classes == ("no", "yes")
    rejected(f"{tmp_path}/mine.py:too_many", "train: rows have 4 array(s), and a network as data takes two; give two")
    rejected(f"{tmp_path}/mine.py:nan", "has NaN or infinite numbers; correct it, or leave it out")
    rejected(f"{tmp_path}/mine.py:two_numbers", "labels have shape (40, 2); give each row one number to predict")
    rejected(f"{tmp_path}/mine.py:three", "gives validation rows by itself; leave it out", split="0.9/0.1")


def test_targets_are_integers_and_those_of_other_rows_do_not_divide(tmp_path):
    for number, targets in enumerate(([0, 1], ["a", "b"] * 5, [[0], [1, 2]])):
        classes = "" if number else "classes = (0, 1)"
        (tmp_path / f"rows{number}.py").write_text(
            f"class Rows:\n    targets = {targets}\n    {classes}\n    def __len__(self): return 10\n"
            "    def __getitem__(self, row): return [[0.0]], row % 2\nrows = Rows()\n"
        )
        if number:
            rejected(f"{tmp_path}/rows{number}.py:rows", "give integers", split=0.5)
    assert len(load_dataset(f"{tmp_path}/rows0.py:rows", split=0.5).train) == 5


@pytest.mark.parametrize(
    "change",
    [
        "",
        "Rows.fingerprint = 'rows'; Rows.__getitem__ = lambda self, rows: (x[rows], y[rows])",
        "del Rows.__getitem__; Rows.__iter__ = lambda self: zip(x[:20], y)",
    ],
)
def test_classes_follow_from_targets_of_rows_of_any_kind(tmp_path, change):
    """Of an object that returns rows one by one, or many at once, and of a stream."""
    lines = ["", change, "Rows.targets = y[:20]", "def made(): return Rows(x, y), Rows(x[20:], y[20:])"]
    (tmp_path / "mine.py").write_text(OBJECTS + "\n".join(lines))
    assert load_dataset(f"{tmp_path}/mine.py:made").classes == ("0", "1")


GRAY = (1, 4, 4)
RAMP = np.linspace(0, 255, 16).astype(np.uint8).reshape(4, 4)


def read(path: Path, shape: tuple[int, int, int] = GRAY, invert: bool = False) -> np.ndarray:
    return read_image(path, shape, invert)


def palette(values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values[::-1], "P")
    image.putpalette([value for number in range(256) for value in (number,) * 3])
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("gray.png", Image.fromarray(RAMP)),
        ("sixteen.png", Image.fromarray(RAMP.astype(np.uint16) * 257)),
        ("sixteen.tif", Image.fromarray(RAMP.astype(np.uint16) * 257)),
        ("color.png", Image.fromarray(np.stack([RAMP] * 3, 2))),
        ("color.ppm", Image.fromarray(np.stack([RAMP] * 3, 2))),
        ("palette.png", palette(RAMP)),
        ("palette.gif", palette(RAMP)),
        ("lossless.webp", Image.fromarray(np.stack([RAMP] * 3, 2))),
        ("opaque.png", Image.fromarray(np.stack([RAMP] * 3 + [np.full_like(RAMP, 255)], 2))),
    ],
)
def test_a_picture_is_the_same_in_all_formats(tmp_path, name, image):
    image.save(tmp_path / name, **({"lossless": True} if name.endswith("webp") else {}))
    assert read(tmp_path / name).tolist() == [RAMP.tolist()]
    assert read(tmp_path / name, invert=True).tolist() == [(255 - RAMP).tolist()]


def test_gray_of_sixteen_bits_in_portable_graymap(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 4 4 65535\n" + (RAMP.astype(">u2") * 257).tobytes())
    assert read(tmp_path / "a.pgm").tolist() == [RAMP.tolist()]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("invert", [False, True])
def test_transparent_pixels_are_background(tmp_path, mode, invert):
    """A white drawing on transparent ground, or with --invert a black one."""
    drawn = 0 if invert else 255
    pixels = np.full((4, 4, 2), (99, 0), np.uint8)
    pixels[1:3, 1:3] = drawn, 255
    image = Image.fromarray(pixels).convert("RGBA")
    if mode == "P":
        image = image.quantize(4)
    image.convert(mode).save(tmp_path / "a.png")
    found = read(tmp_path / "a.png", invert=invert)[0]
    assert (found[1:3, 1:3] == 255).all()
    assert found.sum() == 4 * 255


def test_rotated_photograph_is_read_upright(tmp_path):
    photograph = Image.fromarray(np.kron(RAMP, np.ones((8, 8), np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to see it upright
    photograph.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.jpg", exif=exif, quality=100)
    assert np.abs(read(tmp_path / "a.jpg")[0].astype(int) - RAMP).max() <= 2


def save_as(path: Path, format: str = "HEIF") -> np.ndarray:
    """Save a photo of four colors, uint8 (3, 32, 32), which is returned, in a format that loses little of it."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    colors = np.array([[[200, 40, 90], [10, 220, 30]], [[30, 60, 240], [128, 128, 128]]], np.uint8)
    photo = colors.repeat(16, 0).repeat(16, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo).save(path, format, quality=95)
    return photo.transpose(2, 0, 1)


@pytest.mark.parametrize(("name", "format"), [("a.heic", "HEIF"), ("a.avif", "AVIF"), ("a.jpg", "HEIF")])
def test_photos_of_phones(tmp_path, name, format):
    """Some have the name of a JPEG file."""
    photo = save_as(tmp_path / "photos" / "cat" / name, format)
    found = read_image(tmp_path / "photos" / "cat" / name)
    centers = (slice(None), slice(8, None, 16), slice(8, None, 16))
    assert found.shape == photo.shape and np.abs(found[centers].astype(int) - photo[centers]).max() < 12
    with open(tmp_path / "photos" / "cat" / name, "rb") as file:
        assert (read_image(file) == found).all()
    save_as(tmp_path / "photos" / "dog" / name, format)
    trained = load_dataset(str(tmp_path / "photos"), image_size=(3, 32, 32), split=0.5).train[np.arange(1)]
    assert (trained[0] == found).all()


@pytest.mark.parametrize("name", ["a.heic", "a.jpg"])
def test_without_its_package_a_photo_of_a_phone_is_no_bad_row(tmp_path, monkeypatch, name):
    """It would be skipped, and with it all of its class."""
    place = tmp_path / "photos" / "cat" / name
    save_as(place)
    save_as(tmp_path / "photos" / "dog" / name)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(MissingPackage) as missing:
        load_dataset(str(tmp_path / "photos"), image_size=(3, 32, 32), split=0.5, skip_bad_rows=True).train[
            np.arange(1)
        ]
    assert str(missing.value) == f"{place} needs pillow_heif; pip install 'hvdtrain[heif]'"
    with pytest.raises(MissingPackage, match="the image needs pillow_heif"):
        read_image(io.BytesIO(place.read_bytes()))


def save_animation(path: Path) -> None:
    Image.fromarray(RAMP).save(path, save_all=True, append_images=[Image.fromarray(255 - RAMP)])


def save_truncated(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)).save(path, "PNG")
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize(
    ("save", "reason"),
    [
        (save_animation, "holds 2 images"),
        (lambda path: Image.fromarray(RAMP.astype(np.float32) / 255).save(path, "TIFF"), "32-bit numbers"),
        (lambda path: Image.fromarray(RAMP.astype(np.int32)).save(path, "TIFF"), "32-bit numbers"),
        (lambda path: Image.fromarray(RAMP.astype(np.uint16)).save(path, "PNG", transparency=0), "16 bits"),
        (save_truncated, "cannot be read as an image"),
        (lambda path: Image.new("1", (20_000, 20_000)).save(path, "PNG"), "decompression bomb"),
    ],
)
@pytest.mark.filterwarnings("error", "default::pytest.PytestUnraisableExceptionWarning")  # of files of other tests
def test_what_cannot_be_read_right_is_rejected(tmp_path, save, reason):
    save(tmp_path / "a.gif")
    with pytest.raises(UserError, match=reason) as error:
        read(tmp_path / "a.gif")
    assert "\n" not in str(error.value)


def test_a_photo_of_a_camera_with_a_preview_is_the_photo(tmp_path):
    """Multi-picture JPEG."""
    preview, photo = Image.new("L", (2, 2)), Image.fromarray(np.kron(RAMP, np.ones((8, 8), np.uint8)))
    photo.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[preview], quality=100)
    assert np.abs(read(tmp_path / "a.jpg")[0].astype(int) - RAMP).max() <= 2


def test_an_image_has_its_own_shape_or_one_that_exists(tmp_path):
    Image.fromarray(RAMP).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").tolist() == [RAMP.tolist()]
    assert read_image(str(tmp_path / "a.png"), [3, 2, 8]).shape == (3, 2, 8)
    assert read_image(tmp_path / "a.png", (None, 2, 2)).shape == (1, 2, 2)
    for shape in ((2, 4, 4), (4, 4), (3, 4, None)):
        with pytest.raises(UserError, match="no image has the shape"):
            read_image(tmp_path / "a.png", shape)


@pytest.mark.parametrize("mode", ["P", "CMYK"])
def test_numbers_of_a_palette_are_no_pixels(tmp_path, mode):
    """Pillow gives them as an array where a data set returns such an image."""
    reference = write_python(tmp_path / "data")
    path = tmp_path / "data" / "mine.py"
    code = f"import PIL.Image\nrows = [(PIL.Image.new('{mode}', (4, 4)), 0)] * 4\ndata = rows, rows, 1"
    path.write_text(f"{path.read_text()}\n{code}\n")
    rejected(reference.replace("map_style", "data"), f"is an image of mode {mode}; give image.convert('RGB')")
