"""Tar archives named as WebDataset's: train-000000.tar, ... with KEY.jpg and KEY.cls for each row.

An index of all members, which is made once, has their offsets, so that a row is read by one seek.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch
from filelock import FileLock

from hvdtrain.datasets.formats.image_files import SUFFIXES, TEST_FOLDERS, ImageRows
from hvdtrain.datasets.formats.reading import (
    DataFile,
    ImageSize,
    Malformed,
    fingerprint_of,
    one_line,
    read_class_names,
    read_into,
    wrap_errors,
)
from hvdtrain.datasets.rows import LoadedSources
from hvdtrain.datasets.validation import compact_labels, fingerprint_of_labels, labels_of_parts
from hvdtrain.errors import UserError
from hvdtrain.system.files import write_atomically
from hvdtrain.system.text import printable

SHARD = re.compile(r"(train|test|val)-.*\.tar")
IMAGES = tuple(suffix[1:] for suffix in (*SUFFIXES, ".npy"))
LABEL = "cls"
LABEL_BYTES = 32
INDEX = ".hvdtrain-index.npz"


class Index(NamedTuple):
    """The rows of one shard or several; all arrays have a length of n."""

    keys: np.ndarray
    """Bytes: the member's name without what follows the first period of its last part."""
    offsets: np.ndarray
    """Of the image in the shard, int64."""
    sizes: np.ndarray
    """Of the image, in bytes, int64."""
    labels: np.ndarray
    """int64."""
    is_npy: np.ndarray
    """Whether the image is an .npy file, bool."""


class TarShards(ImageRows):
    """The rows of shards, in the order of their names."""

    labels: np.ndarray

    def __init__(
        self, name: str, shards: list[Shard], labels: np.ndarray, classes: int, skip: bool, resized: ImageSize
    ) -> None:
        super().__init__(name, [len(shard.rows.keys) for shard in shards], classes, skip, resized)
        self._shards, self.labels = shards, labels
        self.labels_seen = np.unique(labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the shards, of all labels, and of the size that images get."""
        of_files = fingerprint_of([shard.file for shard in self._shards])
        return f"{of_files} {fingerprint_of_labels(self.labels)} {self._resized}"

    def where(self, row: int) -> str:
        place, number = self.find(row)
        shard = self._shards[place]
        return f"{shard.file.path}: {printable(os.fsdecode(bytes(shard.rows.keys[number])))}"

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        place, number = self.find(row)
        shard, index = self._shards[place], self._shards[place].rows
        offset, size = int(index.offsets[number]), int(index.sizes[number])
        if not 0 <= offset <= offset + size <= shard.file.size:
            raise Malformed(f"ends at byte {offset + size}, and the shard has {shard.file.size}; remove {INDEX}")
        content = bytearray(size)
        with shard.file.open() as file:  # there may be more shards than files may be open at a time
            shard.file.check_unchanged(os.fstat(file.fileno()))
            read_into(file, offset, memoryview(content))
        member = io.BytesIO(content)
        image = np.load(member, allow_pickle=False) if index.is_npy[number] else self.decode(member)
        return image, int(self.labels[row])


class Shard(NamedTuple):
    """An archive, and what is in it."""

    file: DataFile
    rows: Index


def load_tar_shards(name: str, folder: Path, skip: bool, resized: ImageSize) -> LoadedSources:
    """The data in train-*.tar and test-*.tar, or val-*.tar, of a folder; its classes.txt may name the classes.

    name: of the data in messages. skip, resized: see `RowSource` and `ImageRows`. Raises UserError for a shard that is
    truncated, and for a key without image or label.
    """
    names = sorted(path for path in os.listdir(folder) if SHARD.fullmatch(path))
    tested = next((part for part in TEST_FOLDERS if any(shard.startswith(f"{part}-") for shard in names)), None)
    if tested is None or not any(shard.startswith("train-") for shard in names):
        raise UserError(
            f"{folder}: holds {names[0]}, but no shards of the other part", "give train-*.tar and test-*.tar"
        )
    names = [shard for shard in names if shard.startswith(("train-", f"{tested}-"))]
    shards, known = _indexed(folder, names), read_class_names(folder)
    parts, labels = [], []
    for part in ("train", tested):
        of_part = [shard for shard in shards if shard.file.path.name.startswith(f"{part}-")]
        for shard in of_part:
            compact_labels(str(shard.file.path), shard.rows.labels, len(known) or None)
        parts.append((f"{name}: {part}", of_part))
        labels.append((f"{name}: {part}", np.concatenate([shard.rows.labels for shard in of_part])))
    (train_labels, test_labels), classes = labels_of_parts(labels, str(folder / "classes.txt"), known)
    train = TarShards(*parts[0], train_labels, len(classes), skip, resized)
    test = TarShards(*parts[1], test_labels, len(classes), skip, resized)
    train.take_colors_of_first(test)
    return LoadedSources(train, test, classes)


def _indexed(folder: Path, names: list[str]) -> list[Shard]:
    """The shards with their indexes, from the cache if it has those of the files as they are.

    The cache is a file in the folder, or in the user's cache where the folder cannot be written to. One process of a
    host makes it while others wait.
    """
    files = [DataFile(folder / name) for name in names]
    folder_id = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:32]
    cache = folder / INDEX
    indexes = Path(pooch.os_cache("hvdtrain")) / "indexes"
    if not os.access(folder, os.W_OK) and not cache.exists():
        cache = indexes / f"{folder_id}.npz"
    cached = _read_cache(cache)
    if all(file.state in cached for file in files):
        return [Shard(file, cached[file.state]) for file in files]
    with wrap_errors(indexes, "free disk space there, or set XDG_CACHE_HOME", "written"):
        indexes.mkdir(parents=True, exist_ok=True)
    with FileLock(indexes / f"{folder_id}.lock"):
        cached = _read_cache(cache)
        current = {file.state: cached.get(file.state) or _scan(file) for file in files}
        if current.keys() - cached.keys():
            _write_cache(cache, current)
    return [Shard(file, current[file.state]) for file in files]


def _read_cache(path: Path) -> dict[str, Index]:
    """The indexes in the cache, by the `state` of the shard; none if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            states, ends = arrays["states"].tolist(), arrays["ends"].tolist()
            whole = [arrays[field] for field in Index._fields]
    except Exception:  # of the readers of zip and NumPy files; the index is made again
        return {}
    parts = itertools.pairwise([0, *ends])
    return {
        state: Index(*(array[first:end] for array in whole)) for state, (first, end) in zip(states, parts, strict=False)
    }


def _write_cache(path: Path, indexes: dict[str, Index]) -> None:
    content = io.BytesIO()
    whole = {field: np.concatenate([getattr(index, field) for index in indexes.values()]) for field in Index._fields}
    ends = np.cumsum([len(index.keys) for index in indexes.values()])
    np.savez(content, states=np.array(list(indexes)), ends=ends, **whole)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError:
        pass  # the next job makes it again


def _scan(shard: DataFile) -> Index:
    """The rows of a shard, from its headers. Raises UserError if it is truncated, or a row lacks a part."""
    rows = []
    with wrap_errors(shard.path, "write the shard again"), shard.open() as file:
        for key, members in itertools.groupby(_members(file), key=lambda member: member[0]):
            images, labels = [], []
            for _, suffix, offset, size in members:
                if suffix in IMAGES:
                    images.append((offset, size, suffix == "npy"))
                elif suffix == LABEL:
                    labels.append(_label(file, offset, size, key))
            if len(images) != 1 or len(labels) != 1:
                has = f"{len(images)} images and {len(labels)} .{LABEL} files"
                raise Malformed(f"has {has} of {key}; give each row one of both, next to each other")
            rows.append((os.fsencode(key), *images[0], labels[0]))
        if not rows:
            raise Malformed("holds no rows (KEY.jpg and KEY.cls)")
    keys, offsets, sizes, is_npy, numbers = zip(*rows, strict=True)
    return Index(np.array(keys), *map(np.array, (offsets, sizes, numbers, is_npy)))


def _members(file: FileIO) -> Iterator[tuple[str, str, int, int]]:
    """Key, suffix, offset and size of each file in a shard. Raises Malformed if the end is missing."""
    with tarfile.open(fileobj=file, mode="r:") as archive:
        try:
            for member in archive:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile's own list, which would grow
                folder, _, name = member.name.rpartition("/")
                key, _, suffix = name.partition(".")
                if member.isreg() and not member.issparse() and key:
                    yield f"{folder}/{key}".lstrip("/"), suffix.lower(), member.offset_data, member.size
        except tarfile.TarError as error:
            raise Malformed(f"is truncated or damaged at byte {archive.offset} ({one_line(error)})") from None
        end = os.pread(file.fileno(), tarfile.BLOCKSIZE, archive.offset)
    if len(end) < tarfile.BLOCKSIZE or any(end):
        raise Malformed(f"is truncated or damaged at byte {archive.offset}: it has no end-of-archive mark there")


def _label(file: FileIO, offset: int, size: int, key: str) -> int:
    text = os.pread(file.fileno(), min(size, LABEL_BYTES), offset)
    try:
        return int(text)
    except ValueError:
        raise Malformed(f"has the label {text.decode(errors='replace')!r} in {key}.{LABEL}; give an integer") from None
