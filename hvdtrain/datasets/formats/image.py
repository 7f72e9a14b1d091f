"""Image files: PNG, JPEG and others, as bytes of the shape that a network takes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from hvdtrain.datasets.formats.reading import Malformed, wrap_errors
from hvdtrain.networks.layers import Shape

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Image formats that are read. Pillow knows more, and starts Ghostscript for one of them."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes of 16 bits; in mode I, of 32 bits, it also opens 16-bit files of the formats below."""
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")
GRAY = ("1", "L", "LA", "La", "I", *SIXTEEN_BITS)
"""Pillow's modes without color."""
REMEDY = f"give one image of {', '.join(FORMATS)}"


def read_image(path: Path, shape: Shape, invert: bool) -> np.ndarray:
    """The image upright, resized to `shape` (channels, height, width), uint8.

    invert: exchange light and dark. Transparent pixels become 0, the background of the built-in data sets. Raises
    UserError for a file that cannot be read, or whose values have no definite range.
    """
    channels, height, width = shape
    with wrap_errors(path, REMEDY, "read as an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open(path, "rb") as file:
            return decode(file, channels, (height, width), invert)


def decode(
    file: BinaryIO, channels: int | None = None, size: tuple[int, int] | None = None, invert: bool = False
) -> np.ndarray:
    """The image in a file, upright: uint8 (channels, height, width); see `read_image`.

    channels: 1 or 3; None for 1 if the image is gray, else 3. size: (height, width) to which it is resized, each pixel
    the mean of the area that it covers (Pillow's BOX), whatever the ratio of the sides; None for its own. Raises
    Malformed, or what Pillow raises; may warn. Safe in threads.
    """
    with Image.open(file, formats=FORMATS) as image:
        if image.width * image.height > (Image.MAX_IMAGE_PIXELS or 0):
            raise Malformed(f"has {image.width}x{image.height} pixels; it may be a decompression bomb")
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            raise Malformed(f"holds {frames} images; save the one to use by itself")
        upright = ImageOps.exif_transpose(image)
        upright.format = image.format
        picture = _without_alpha(_eight_bits(upright), 255 if invert else 0)
    if channels is None:
        channels = 1 if image.mode in GRAY else 3
    picture = picture.convert("L" if channels == 1 else "RGB")
    if size and size != (picture.height, picture.width):
        picture = picture.resize(size[::-1], Image.Resampling.BOX)
    pixels = np.asarray(ImageOps.invert(picture) if invert else picture)
    return pixels.reshape(picture.height, picture.width, channels).transpose(2, 0, 1).copy()


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with 8 bits per channel; Pillow's own conversion would cut values at 255."""
    if image.mode in SIXTEEN_BITS or (image.mode == "I" and image.format in SIXTEEN_BIT_FORMATS):
        if "transparency" in image.info:
            raise Malformed("has 16 bits and a transparent gray; save it with 8 bits")
        return Image.fromarray(np.rint(np.asarray(image, np.float64) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Malformed("holds 32-bit numbers, whose range from black to white is not known; save it with 8 bits")
    return image


def _without_alpha(image: Image.Image, background: int) -> Image.Image:
    """The image on a background of this gray."""
    if not image.has_transparency_data:
        return image
    opaque = Image.new("RGBA", image.size, (background, background, background, 255))
    return Image.alpha_composite(opaque, image.convert("RGBA"))
