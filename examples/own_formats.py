"""Data in formats that hvdtrain does not read itself: functions for --data, which read rows with other packages.

Tar shards with the names of WebDataset, in which each row has KEY.jpg and KEY.cls, shards/train-000000.tar and so on:
    hvdtrain train --data examples/own_formats.py:tar_shards --model cifar_lenet --lr 0.02
A HDF5 file, photos.h5, with the data sets train/images, train/labels, test/images and test/labels:
    hvdtrain train --data examples/own_formats.py:hdf5 --model cifar_lenet --lr 0.02
A data set of Hugging Face's, here of the images in photos/train/CLASS/ and photos/test/CLASS/:
    hvdtrain train --data examples/own_formats.py:hugging_face --model cifar_lenet --lr 0.02
"""

from __future__ import annotations

import glob
import io
import tarfile
from typing import Any

import numpy as np

import hvdtrain


class TarShards:
    """The rows of tar files, whose headers are read once: then each row is read by one seek."""

    background = "threads"  # of --workers, as reading and decoding leave Python's lock to others

    def __init__(self, pattern: str, side: int = 32) -> None:
        self.side, self.images, self.targets = side, [], []
        for path in sorted(glob.glob(pattern)):
            with tarfile.open(path) as shard:
                for member in shard:
                    if member.name.endswith(".jpg"):
                        self.images.append((path, member.offset_data, member.size))
                    elif member.name.endswith(".cls"):
                        self.targets.append(int(shard.extractfile(member).read()))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        path, offset, size = self.images[row]
        with open(path, "rb") as file:
            file.seek(offset)
            content = io.BytesIO(file.read(size))
        return hvdtrain.read_image(content, shape=(3, self.side, self.side)), self.targets[row]


def tar_shards() -> tuple[TarShards, TarShards]:
    """Training and test rows."""
    return TarShards("shards/train-*.tar"), TarShards("shards/test-*.tar")


class Hdf5Rows:
    """Images and labels of a part of an HDF5 file. Each process of --workers opens the file by itself."""

    def __init__(self, path: str, part: str) -> None:
        import h5py

        group = h5py.File(path)[part]
        self.images, self.targets = group["images"], group["labels"][:]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self.images[row], self.targets[row]


def hdf5() -> tuple[Hdf5Rows, Hdf5Rows]:
    """Training and test rows."""
    return Hdf5Rows("photos.h5", "train"), Hdf5Rows("photos.h5", "test")


def hugging_face() -> Any:
    """Training and test rows: --label and --columns say which columns they are, if not `label` and one other."""
    from datasets import load_dataset

    photos = load_dataset("imagefolder", data_dir="photos")
    return photos.map(lambda row: {"image": row["image"].resize((32, 32))})
