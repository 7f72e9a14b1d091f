"""Image files of all kinds that Pillow writes: read as they look, or rejected in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.errors import UserError

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
def test_a_picture_is_the_same_in_all_formats(tmp_path: Path, name: str, image: Image.Image) -> None:
    image.save(tmp_path / name, **({"lossless": True} if name.endswith("webp") else {}))
    assert read(tmp_path / name).tolist() == [RAMP.tolist()]
    assert read(tmp_path / name, invert=True).tolist() == [(255 - RAMP).tolist()]


def test_gray_of_sixteen_bits_in_portable_graymap(tmp_path: Path) -> None:
    (tmp_path / "a.pgm").write_bytes(b"P5 4 4 65535\n" + (RAMP.astype(">u2") * 257).tobytes())
    assert read(tmp_path / "a.pgm").tolist() == [RAMP.tolist()]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("invert", [False, True])
def test_transparent_pixels_are_background(tmp_path: Path, mode: str, invert: bool) -> None:
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


def test_rotated_photograph_is_read_upright(tmp_path: Path) -> None:
    photograph = Image.fromarray(np.kron(RAMP, np.ones((8, 8), np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to see it upright
    photograph.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.jpg", exif=exif, quality=100)
    assert np.abs(read(tmp_path / "a.jpg")[0].astype(int) - RAMP).max() <= 2


def test_colors_and_bits(tmp_path: Path) -> None:
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=100)
    red = read(tmp_path / "red.jpg", (3, 4, 4))
    assert (red[0] > 250).all()
    assert (red[1:] < 5).all()
    Image.fromarray(RAMP > 99).save(tmp_path / "bits.tif")
    assert read(tmp_path / "bits.tif").tolist() == [np.where(RAMP > 99, 255, 0).tolist()]


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
        (lambda path: Image.new("1", (10_000, 10_000)).save(path, "PNG"), "decompression bomb"),
        (lambda path: Image.new("1", (20_000, 20_000)).save(path, "PNG"), "decompression bomb"),
    ],
)
@pytest.mark.filterwarnings("error", "default::pytest.PytestUnraisableExceptionWarning")  # of files of other tests
def test_what_cannot_be_read_right_is_rejected(tmp_path: Path, save, reason: str) -> None:
    save(tmp_path / "a.gif")
    with pytest.raises(UserError, match=reason) as error:
        read(tmp_path / "a.gif")
    assert "\n" not in str(error.value)
