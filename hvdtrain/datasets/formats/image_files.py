"""Image files: PNG, JPEG and others, as bytes of the shape that a network takes; and folders of them for each class."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from hvdtrain.datasets.formats.reading import (
    HEIF_SUFFIXES,
    IMAGE_SUFFIXES,
    READABLE,
    ImageSize,
    Malformed,
    check_unchanged,
    fingerprint,
    parts_beside,
    wrap_errors,
)
from hvdtrain.datasets.images_and_labels import ImagesAndLabels
from hvdtrain.datasets.rows import MAX_FIRST, PARTS, CheckedRows, LoadedSources, RowError
from hvdtrain.errors import UserError, needed_by
from hvdtrain.networks.layers import Shape, text
from hvdtrain.system.text import printable

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF")
"""Image formats that are read. Pillow knows more, and starts Ghostscript for one of them."""
HEIF = "HEIF"
"""The format of HEIC files, which another package reads for Pillow."""
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")
"""What a HEIF file says about itself in bytes 8 to 12, after `ftyp` (ISO/IEC 23008-12)."""
HAS_MAIN_IMAGE = ("MPO", HEIF)
"""Formats of which one image is the photo: JPEG of cameras that add previews (MPO), and HEIF."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes of 16 bits; in mode I, of 32 bits, it also opens 16-bit files of the formats below."""
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")
GRAY = ("1", "L", "LA", "La", "I", *SIXTEEN_BITS)
"""Pillow's modes without color."""
REMEDY = f"give one image of {', '.join((*FORMATS, HEIF))}"
ImageFile = str | os.PathLike[str] | BinaryIO
MOVE = "move the folder elsewhere"
MAX_SUFFIXES = 3
"""Of files that are not images, in a message."""


def read_image(path: ImageFile, shape: Sequence[int | None] = (), invert: bool = False) -> np.ndarray:
    """The image in a file as training and `predict` read it: uint8 of shape (channels, height, width).

    It is upright (EXIF), 16 bits are 8, transparent pixels are 0, and each pixel is the mean of the area that it covers
    (Pillow's BOX), whatever the ratio of the sides.
    path: of the file, or an open one. shape: (channels, height, width) to which it is resized; without channels (None)
    gray images get 1 and others 3, and without a shape it also keeps its size. invert: exchange light and dark.
    Raises UserError for a file that cannot be read, or whose values have no definite range.
    """
    channels, *sides = shape or (None,)
    size = tuple(filter(None, sides))
    if channels not in (None, 1, 3) or (shape and len(size) != 2):
        raise UserError(f"no image has the shape {tuple(shape)}", "give (1, HEIGHT, WIDTH) or (3, HEIGHT, WIDTH)")
    _ignore_warnings()
    with wrap_errors(_name(path), REMEDY, "read as an image"), contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb")) if isinstance(path, str | os.PathLike) else path
        return decode(file, channels, size, invert)


def _name(file: ImageFile) -> str:
    """The name of a file, open or not, for messages."""
    name = getattr(file, "name", "") if hasattr(file, "read") else file
    return printable(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) and name else "the image"


def _ignore_warnings() -> None:
    """Those of Pillow, of metadata that it does not need; for good, as `warnings.catch_warnings` is not thread-safe."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def decode(file: BinaryIO, channels: int | None = None, size: Shape = (), invert: bool = False) -> np.ndarray:
    """The image in a file, upright: uint8 (channels, height, width); see `read_image`.

    channels: 1 or 3; None for 1 if the image is gray, else 3. size: (height, width) to which it is resized, each pixel
    the mean of the area that it covers (Pillow's BOX), whatever the ratio of the sides; () for its own. Raises
    Malformed, MissingPackage, or what Pillow raises; may warn. Safe in threads.
    """
    with _open(file) as image:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format not in HAS_MAIN_IMAGE:
            raise Malformed(f"holds {frames} images; save the one to use by itself")
        upright = ImageOps.exif_transpose(image)
        upright.format = image.format
        picture = _without_alpha(_eight_bits(upright), 255 if invert else 0)
    if channels is None:
        channels = 1 if image.mode in GRAY else 3
    picture = picture.convert("L" if channels == 1 else "RGB")
    if size and size != (picture.height, picture.width):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BOX)
    pixels = np.asarray(ImageOps.invert(picture) if invert else picture)
    return pixels.reshape(picture.height, picture.width, channels).transpose(2, 0, 1).copy()


def _open(file: BinaryIO) -> Image.Image:
    """The image in a file, which its content alone makes HEIF: phones often name such photos as JPEG files."""
    beginning = file.read(12)
    file.seek(0)
    if beginning[4:8] == b"ftyp" and beginning[8:] in HEIF_BRANDS:
        _prepare_heif(_name(file))
    try:
        return Image.open(file, formats=(*FORMATS, HEIF) if HEIF in Image.OPEN else FORMATS)
    except UnidentifiedImageError:  # whose message names the object, and not the file
        raise Malformed("cannot be read as an image (its content has none of the formats that are read)") from None


def _prepare_heif(file: str) -> None:
    """Let Pillow read HEIF files. Raises MissingPackage, which names this file, without the package for it."""
    with needed_by(file, "heif"):
        import pillow_heif
    pillow_heif.register_heif_opener()


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
    if not image.has_transparency_data:
        return image
    opaque = Image.new("RGBA", image.size, (background, background, background, 255))
    return Image.alpha_composite(opaque, image.convert("RGBA"))


class ImageFolder(CheckedRows):
    """Images in folders of classes: rows by class, in the order of the file names.

    part: the folder of the folders. resized: (channels, height, width) that all images get; without channels those of
    the first image, and without anything also its size.
    """

    known_labels: np.ndarray
    in_color = False
    """Whether gray images get three channels."""

    def __init__(self, name: str, part: Path, found: Sequence[ClassFolder], skip: bool, resized: ImageSize) -> None:
        counts = [len(one.paths) for one in found]
        super().__init__(name, sum(counts), skip, ImagesAndLabels(range(len(found))))
        self._part, self._resized = os.fsencode(part), resized
        # Arrays, as a million names and numbers take a tenth of the memory of a list.
        self._paths, self._sizes, self._mtimes_ns = map(np.concatenate, zip(*(one[:3] for one in found), strict=True))
        self.known_labels = np.repeat(np.arange(len(found), dtype=np.min_scalar_type(len(found))), counts)
        if ignored := sum(one.ignored for one in found):
            self.advice = (
                f"{name}: {ignored} file(s) are ignored, whose names end with none of {', '.join(IMAGE_SUFFIXES)}",
            )
        size = text(resized[1:]) if resized else "HEIGHTxWIDTH"
        colors = f"1x{size} for gray or 3x{size} for color"
        self.other_shape = f"give --image-size {colors}" if resized else f"give --image-size {size}, or {colors}"
        self.other_shape += ", which all images then get"
        _ignore_warnings()

    def check_classes(self) -> None:
        """Raise UserError for a class of which no image can be read, where those that cannot are skipped."""
        ends = np.cumsum(np.bincount(self.known_labels)).tolist() if self.skip else ()
        for first, end in itertools.pairwise((0, *ends)):
            for row in range(first, min(end, first + MAX_FIRST)):
                try:
                    self._valid_row(row)
                    break
                except RowError as error:
                    reason = error.reason
            else:
                folder = os.path.dirname(self.where(first))
                raise UserError(f"{folder}: no image of this class can be read, such as {reason}", MOVE)

    def _path(self, row: int) -> bytes:
        return self._part + b"/" + bytes(self._paths[row])

    @functools.cached_property
    def fingerprint(self) -> str:
        return f"{fingerprint(self._path, self._paths.tolist(), self._sizes.tolist())} {self._resized}"

    def where(self, row: int) -> str:
        return printable(os.fsdecode(self._path(row)))

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        channels, *size = self._resized or (None,)
        path = self._path(row)
        with open(path, "rb") as file:
            check_unchanged(path, os.fstat(file.fileno()), int(self._sizes[row]), int(self._mtimes_ns[row]))
            image = decode(file, channels, tuple(size))
        if self.in_color and len(image) == 1:
            image = np.repeat(image, 3, axis=0)
        return image, int(self.known_labels[row])


class ClassFolder(NamedTuple):
    """The images of a class, in the order of the bytes of their names."""

    paths: np.ndarray
    """CLASS/NAME: bytes (n,)."""
    sizes: np.ndarray
    """In bytes, int64 (n,); -1 for a link to a file that does not exist."""
    mtimes_ns: np.ndarray
    """Times of the last change, int64 (n,)."""
    ignored: int
    """Files whose names are not those of images."""


def load_image_folder(name: str, folder: Path, skip: bool, resized: ImageSize) -> LoadedSources:
    """train/CLASS/*.png and test/CLASS/*.png, and of validation rows valid/CLASS/*.png; or CLASS/*.png, in one part.

    Labels number the sorted names of the classes. name: of the data in messages. skip, resized: see `CheckedRows`,
    `ImageFolder`. Raises UserError if the parts do not have the same classes, or a class to train has no image.
    """
    train = folder / "train" if (folder / "train").is_dir() else folder
    others = parts_beside(_class_names(folder), name) if train != folder else []
    classes = _class_names(train)
    if not classes:
        raise UserError(f"{train}: has no folders of images", "give it a folder of images for each class")
    parts = []
    for part in (train, *(folder / other for other in others)):
        names = _class_names(part)
        for label in sorted({*names} ^ {*classes}):
            has, lacks = (part, train) if label in names else (train, part)
            reason = f"{printable(str(lacks / label))}: no such folder, but {has.name} has this class"
            raise UserError(reason, "give all parts the same classes; a folder of test may be empty")
        found = [_scan(part, label) for label in classes]
        empty = [label for label, images in zip(classes, found, strict=True) if not len(images.paths)]
        if empty and (part == train or len(empty) == len(classes)):
            raise UserError(f"{printable(str(part / empty[0]))}: holds no image", "remove it, or add images")
        parts.append(ImageFolder(f"{name}: {part.name}" if others else name, part, found, skip, resized))
    parts[0].check_classes()
    is_color = parts[0].forms[0][0][0] == 3
    for rows in parts:
        rows.in_color = is_color
    return LoadedSources(dict(zip(PARTS, parts, strict=False)), tuple(map(printable, classes)))


def _class_names(folder: Path) -> list[str]:
    with wrap_errors(folder, READABLE), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _scan(part: Path, label: str) -> ClassFolder:
    """The images of a class folder, without hidden files.

    Raises UserError if it holds a folder, or files of which none is an image; MissingPackage for HEIF files.
    """
    folder, images, ignored = printable(str(part / label)), [], list[str]()
    known, heif = (tuple(map(str.encode, suffixes)) for suffixes in (IMAGE_SUFFIXES, HEIF_SUFFIXES))
    with wrap_errors(folder, READABLE), os.scandir(os.fsencode(part / label)) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            if entry.is_dir():
                reason = f"{printable(os.fsdecode(entry.path))}: a folder in the folder of a class"
                raise UserError(reason, "put all images directly into the latter")
            if not entry.name.lower().endswith(known):
                ignored.append(os.path.splitext(os.fsdecode(entry.name))[1].lower() or "without suffix")
                continue
            try:
                status = entry.stat()
                images.append((entry.name, status.st_size, status.st_mtime_ns))
            except OSError:  # a link to a file that does not exist: the row cannot be read
                images.append((entry.name, -1, 0))
    if ignored and not images:
        suffixes = printable(", ".join(sorted({*ignored})[:MAX_SUFFIXES]))
        reason = f"{folder}: none of its {len(ignored)} file(s) is read as an image ({suffixes})"
        raise UserError(reason, f"save them as {', '.join(IMAGE_SUFFIXES)}, or {MOVE}")
    images.sort()
    if first := next((name for name, *_ in images if name.lower().endswith(heif)), b""):
        _prepare_heif(f"{folder}/{printable(os.fsdecode(first))}")
    paths = np.array([os.fsencode(label) + b"/" + name for name, _, _ in images] or np.zeros(0, "S1"))
    sizes, mtimes_ns = (np.array([image[position] for image in images], np.int64) for position in (1, 2))
    return ClassFolder(paths, sizes, mtimes_ns, len(ignored))
