"""Checkpoints on disk, also divided over several files: what is kept, how much memory it takes, and damage."""

import errno
import json
import os
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.networks import LENET, LENET_RECORD
from support.untrusted import rewrite, save_checkpoint

from hvdtrain.interfaces.learner import Checkpoint, OptimizerState, Position
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.runs import checkpoints, shards
from hvdtrain.runs.checkpoints import MANIFEST, Damaged
from hvdtrain.system import checkpoint_folder

LARGE = 1 << 22
"""Bytes of an array of the tests of memory."""
ARRAYS = {
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "transposed": np.arange(60, dtype=np.float32).reshape(5, 12).T,
    "large": np.arange(1000, dtype=np.float64),
    "flags": np.array([True, False, True]),
    "big_endian": np.arange(9, dtype=">f4"),
    "half": np.arange(7, dtype=np.float16),
}


@pytest.fixture()
def small(monkeypatch):
    """Files of 300 bytes, read and written in chunks of 64."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 300)
    for module in (shards, checkpoint_folder):
        monkeypatch.setattr(module, "CHUNK_BYTES", 64)


def same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert (array.shape, array.dtype.name) == (expected[name].shape, expected[name].dtype.name), name
        assert np.array_equal(array, expected[name]), name
        assert array.flags.writeable, name


@pytest.mark.usefixtures("small")
def test_divided_arrays_are_loaded_as_saved(tmp_path):
    state = OptimizerState({f"momentum/{i}": np.full(60, i, np.float32) for i in range(4)})
    others = ({"momentum/0": np.ones(60, np.float32)},)
    path = save_checkpoint(tmp_path, weights=ARRAYS, optimizer=state, other_ranks=others)
    loaded = checkpoints.load(path)
    same(loaded.weights, ARRAYS)
    same(loaded.optimizer.arrays, state.arrays)
    same(loaded.other_ranks[0], others[0])
    assert checkpoint_folder.is_whole(path)


@pytest.mark.usefixtures("small")
def test_an_array_larger_than_a_file_has_one_of_its_own(tmp_path):
    path = save_checkpoint(tmp_path, weights=ARRAYS)
    names = [f"weights-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(one.name for one in path.glob("weights*")) == names
    assert names[0] in json.loads((path / MANIFEST).read_text())["sha256"]
    found = [sorted(load_file(path / name)) for name in names]
    assert found == [["empty", "scalar", "transposed"], ["large"], ["big_endian", "flags", "half"]]
    assert load_file(path / names[0])["transposed"].tolist() == ARRAYS["transposed"].tolist()


def test_a_file_that_the_library_wrote_is_loaded(tmp_path):
    path = save_checkpoint(tmp_path)
    loaded = checkpoints.load(path)
    save_file(loaded.weights, path / "weights.safetensors")
    rewrite(path, "weights.safetensors", (path / "weights.safetensors").read_bytes())
    same(checkpoints.load(path).weights, loaded.weights)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "swapped"])
def test_a_damaged_shard_is_noticed(tmp_path, damage):
    path = save_checkpoint(tmp_path, weights=ARRAYS)
    first, second, _ = sorted(path.glob("weights*"))
    data = bytearray(second.read_bytes())
    if damage == "missing":
        second.unlink()
    elif damage == "swapped":
        first.rename(path / "x")
        second.rename(first)
        (path / "x").rename(second)
    else:
        data[-9] ^= 1
        second.write_bytes(data if damage == "flipped" else data[:-9])
    with pytest.raises(Damaged, match=path.name):
        checkpoints.load(path)
    assert not checkpoint_folder.is_whole(path)


def test_memory_holds_the_arrays_once(tmp_path, monkeypatch):
    """Both while they are written and checked, and while they are read."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 4 * LARGE)
    for module in (shards, checkpoint_folder):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 16)
    weights = {f"w{i}": np.full(LARGE // 4, i, np.float32) for i in range(8)}
    tracemalloc.start()
    try:
        path = save_checkpoint(tmp_path, weights=weights)
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        loaded = checkpoints.load(path)
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    same(loaded.weights, weights)
    assert written < LARGE
    assert 8 * LARGE <= read < 9 * LARGE


def test_a_full_disk_gets_its_space_back(tmp_path, monkeypatch):
    older = save_checkpoint(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(handle):
        raise full

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [older.name]
    checkpoints.load(older)


def checkpoint(step=1):
    weights = initial_weights(LENET, "xavier", step)
    state = OptimizerState({f"momentum/{name}": value for name, value in weights.items()}, -0.5, 7, {"a": 1})
    position = Position(1, 2, step, 64, 0)
    return Checkpoint(weights, state, position, "lenet", LENET_RECORD, "torch", "sgd", "ab12", 0.0, ("0", "1"))


@pytest.mark.guarantee("damaged-checkpoint")
@pytest.mark.parametrize("file", [*checkpoints.FILES, checkpoints.MANIFEST])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_damage_is_reported_and_the_newest_intact_checkpoint_used(tmp_path, caplog, file, damage):
    for step in (1, 2):
        checkpoints.save(tmp_path, checkpoint(step), keep=5)
    path = tmp_path / "step-00000002" / file
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    with pytest.raises(Damaged, match="step-00000002"):
        checkpoints.load(tmp_path / "step-00000002")
    assert checkpoints.newest(tmp_path)[1].position.step == 1
    assert "step-00000002" in caplog.text
