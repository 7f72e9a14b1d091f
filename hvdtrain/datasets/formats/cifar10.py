"""CIFAR-10's binary version: https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from hvdtrain.datasets.formats.reading import Arrays, Malformed

ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
RECORDS = 10_000
"""Records in each of the six files."""
RECORD_BYTES = 1 + 3 * 32 * 32
"""A record is the label, then the red, green and blue pixels."""


def parse_cifar10(files: Iterable[tuple[str, bytes]]) -> Arrays:
    """CIFAR-10 from the names and contents of FILES, in any order.

    Images are (n, 3, 32, 32), uint8; labels (n,), int64. Raises Malformed, naming the file at fault.
    """
    images = np.empty((len(FILES) * RECORDS, 3, 32, 32), np.uint8)
    labels = np.empty(len(images), np.int64)
    missing = set(FILES)
    for name, content in files:
        if len(content) != RECORDS * RECORD_BYTES:
            raise Malformed(f"{name} holds {len(content)} bytes, expected {RECORDS * RECORD_BYTES}")
        records = np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD_BYTES)
        if records[:, 0].max() > 9:
            raise Malformed(f"{name} holds labels up to {records[:, 0].max()}, the largest valid one is 9")
        first = FILES.index(name) * RECORDS
        labels[first : first + RECORDS] = records[:, 0]
        images[first : first + RECORDS] = records[:, 1:].reshape(-1, 3, 32, 32)
        missing.discard(name)
    if missing:
        raise Malformed(f"lacks {', '.join(sorted(missing))}")
    train, test = slice(-RECORDS), slice(-RECORDS, None)
    return images[train], labels[train], images[test], labels[test]


def archive_members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Names and contents of FILES in the archive; chosen by their exact names, and never extracted to the disk."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            content = archive.extractfile(member) if member.isfile() else None
            if content and folder == FOLDER and name in FILES:
                yield name, content.read(RECORDS * RECORD_BYTES + 1)  # one more shows a file that is too long
