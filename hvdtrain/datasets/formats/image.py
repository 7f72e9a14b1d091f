"""Image files: PNG, JPEG and others, as bytes of the shape that a network takes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from hvdtrain.datasets.formats.reading import Malformed, wrap_errors
from hvdtrain.networks.layers import Shape

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Image formats that are read. Pillow knows more, and starts Ghostscript for one of them."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes of 16 bits; in mode I, of 32 bits, it also opens 16-bit files of the formats below."""
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")


def read_image(path: Path, shape: Shape, invert: bool) -> np.ndarray:
    """The image upright, resized to `shape` (channels, height, width), uint8.

    invert: exchange light and dark. Transparent pixels become 0, the background of the built-in data sets. Raises
    UserError for a file that cannot be read, or whose values have no definite range.
    """
    channels, height, width = shape
    with wrap_errors(path, f"give one image of {', '.join(FORMATS)}", "read as an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=FORMATS) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1:
                raise Malformed(f"holds {frames} images; save the one to classify by itself")
            upright = ImageOps.exif_transpose(image)
            upright.format = image.format
            picture = _without_alpha(_eight_bits(upright), 255 if invert else 0)
        picture = picture.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BOX)
    pixels = np.asarray(ImageOps.invert(picture) if invert else picture)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1).copy()


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
