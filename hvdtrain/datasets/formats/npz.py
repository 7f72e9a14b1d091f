"""NumPy's .npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.formats.reading import Arrays, Malformed, wrap_errors


def read_npz(path: Path, names: Iterable[str], missing: bool = False) -> Arrays:
    """The named arrays in the .npz file `path`, or with `missing` those of them that are there; never unpickles.

    Raises UserError if the file is damaged, or an array is missing, pickled or larger than memory.
    """
    with wrap_errors(path, "save numeric arrays there with numpy.savez"):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > reading.MEMORY:
            raise Malformed(f"unpacks to {size / 2**30:,.0f} GiB, more than this machine's memory allows")
        with np.load(path, allow_pickle=False) as arrays:
            return tuple(_array(arrays, name) for name in names if name in arrays.files or not missing)


def _array(arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    if name not in arrays.files:
        raise Malformed(f"holds no array named {name} (only {', '.join(arrays.files) or 'nothing'})")
    try:
        array = arrays[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise Malformed(f"holds {name} as pickled objects, which are never loaded") from None
        raise
    if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member that is not a .npy file
        raise Malformed(f"holds {name}, but not as an array")
    return array
