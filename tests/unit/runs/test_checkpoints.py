"""Checkpoints on disk: what is kept, and how damage is detected."""

import pytest
from support.jobs import distance
from support.networks import LENET, LENET_RECORD

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.runs import checkpoints
from hvdtrain.runs.checkpoints import Damaged


def checkpoint(step=1):
    weights = initial_weights(LENET, "xavier", step)
    state = OptimizerState({f"momentum/{name}": value for name, value in weights.items()}, -0.5, 7, {"a": 1})
    position = Position(1, 2, step, 64, 0)
    return Checkpoint(weights, state, position, "lenet", LENET_RECORD, "torch", "sgd", "ab12", 0.0, ("0", "1"))


def test_checkpoint_is_loaded_as_saved(tmp_path):
    saved = checkpoint()
    loaded = checkpoints.load(checkpoints.save(tmp_path, saved, keep=1))
    assert distance(loaded.weights, saved.weights) == 0
    assert distance(loaded.optimizer.arrays, saved.optimizer.arrays) == 0
    assert loaded.optimizer._replace(arrays={}) == saved.optimizer._replace(arrays={})
    assert (loaded.position, loaded.classes, loaded.data) == (saved.position, saved.classes, saved.data)
    assert (loaded.model, loaded.network) == (saved.model, saved.network)


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


def test_folder_without_checkpoint(tmp_path):
    with pytest.raises(UserError, match="no intact checkpoint"):
        checkpoints.newest(tmp_path)
