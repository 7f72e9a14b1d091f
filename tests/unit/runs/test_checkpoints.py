"""Checkpoints on disk: which is the newest or the best, what is kept, files of several parts and ranks, and damage."""

import errno
import os
import resource
import shutil
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.errors import refused
from support.untrusted import save_checkpoint

from hvdtrain.config import sources
from hvdtrain.errors import UserError, WriteError
from hvdtrain.interfaces.learner import OptimizerState, Position
from hvdtrain.runs import best, checkpoints
from hvdtrain.runs.checkpoints import MANIFEST, Damaged, run_to_continue
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.system import checkpoint_folder, run_end
from hvdtrain.system.checkpoint_folder import Entry
from hvdtrain.training.state import must_write
from hvdtrain.views.run_view import chosen_run

ARRAYS = {
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "transposed": np.arange(60, dtype=np.float32).reshape(5, 12).T,
    "large": np.arange(1000, dtype=np.float64),
    "flags": np.array([True, False, True]),
    "big_endian": np.arange(9, dtype=">f4"),
    "half": np.arange(7, dtype=np.float16),
}


class Run:
    """A run's folder, to which checkpoints are written that differ in their step only."""

    def __init__(self, folder, keep=9):
        folder.mkdir(exist_ok=True)
        self.folder, self.place, self.keep = folder, folder / "checkpoints", keep

    def save(self, *steps, **given):
        for step in steps:
            path = save_checkpoint(self.place, self.keep, position=Position(step=step), **given)
        return path

    def names(self):
        return [path.name.removeprefix("step-").lstrip("0") for path in checkpoint_folder.paths(self.place)]

    def newest(self):
        """Step of the checkpoint from which the run resumes; the launcher must also know it."""
        found = checkpoints.newest(self.folder)[1].position.step
        assert run_end.newest_checkpoint(self.folder).step == found
        return found

    def damage(self, step, file=checkpoints.FILES[0]):
        path = self.place / f"step-{step:08d}" / file
        path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


@pytest.mark.guarantee("newest-checkpoint")
def test_the_newest_is_the_last_one_written_though_steps_were_renumbered(run):
    run.keep = 2
    for step in (92, 115, 138, 42, 48, 42):
        run.save(step)
        assert run.newest() == step
    assert run.names() == ["42-6", "48"], "both of step 42 were there"


def fails_with(number):
    """A function that fails as one of `os` that was given two paths."""

    def fail(*paths):
        raise OSError(number, os.strerror(number), str(paths[0]), None, str(paths[1]))

    return fail


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


RENAMING = (errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.ENOSYS)
FAULTS = [
    *((number, r"it cannot be renamed there\); choose a folder on another disk with --runs") for number in RENAMING),
    *((number, r"cannot be written \([^:]*\); free disk space or") for number in (errno.EIO, errno.EROFS)),
]


@pytest.mark.parametrize(("number", "message"), FAULTS)
def test_a_folder_that_cannot_be_renamed_is_called_so(run, monkeypatch, number, message):
    monkeypatch.setattr(os, "rename", fails_with(number))
    with pytest.raises(WriteError, match=message), must_write("the checkpoint", run.folder):
        run.save(1)


def test_a_limit_of_the_size_of_files_is_named(run):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(WriteError) as raised, must_write("the checkpoint", run.folder):
            run.save(1, weights=ARRAYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the size of files is limited); raise the limit (ulimit -f unlimited)" in str(raised.value)


@pytest.mark.parametrize(
    ("files", "left", "bytes_left", "used"),
    [(100, 0, 90, True), (100, 3, 90, True), (100, 50, 0, False), (100, 50, 1, False), (0, 0, 90, False)],
)
def test_inodes_that_are_used_up_are_named(run, monkeypatch, files, left, bytes_left, used):
    """Also where the part of a checkpoint was removed; not on a file system that does not count them."""
    counts = mock.Mock(f_files=files, f_favail=left, f_blocks=100, f_bavail=bytes_left)
    monkeypatch.setattr(os, "statvfs", lambda _: counts)
    monkeypatch.setattr(checkpoints, "_write", full)
    with pytest.raises(WriteError) as raised, must_write("the checkpoint", run.folder):
        run.save(1)
    assert ("all inodes are used); remove files" in str(raised.value)) == used


@pytest.mark.guarantee("damaged-checkpoint")
@pytest.mark.parametrize("file", [*checkpoints.FILES, MANIFEST])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_damage_is_reported_and_the_newest_intact_checkpoint_used(run, caplog, file, damage):
    path = run.save(1, 2) / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink() if damage == "missing" else path.write_bytes(data if damage == "flip" else data[:-9])
    with pytest.raises(Damaged, match="step-00000002"):
        checkpoints.load(path.parent)
    assert run.newest() == 1
    assert "step-00000002" in caplog.text
    run.save(2)
    assert run.newest() == 2, "training has continued from step 1"


def test_pruning_keeps_whole_checkpoints_besides_damaged_ones(run):
    run.save(1, 2, 3)
    run.damage(3)
    run.keep = 2
    run.save(4)
    assert run.names() == ["2", "3", "4"]
    run.damage(4, MANIFEST)
    run.keep = 1
    run.save(5)
    assert run.names() == ["4", "5"], "what cannot be read now may be whole"
    for _ in range(3):
        (run.save(4) / MANIFEST).write_text("{}")


def test_best_names_the_best_whole_checkpoint(run):
    best = run.folder / "best"
    for step, score in ((1, 0.7), (2, 0.9), (3, 0.8)):
        run.save(step, score=score)
    run.save(4)
    assert checkpoints.newest(best)[1].position.step == 2
    run.damage(2)
    assert checkpoints.newest(best)[1].position.step == 3
    best.mkdir()  # a folder of that name is what it is
    with pytest.raises(UserError, match="no intact checkpoint"):
        checkpoints.newest(best)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("runs/nope", ""),
        ("runs/frist", " (did you mean first?)"),
        ("first", " (did you mean runs/first?)"),
        ("runs/first/bets", " (did you mean best?)"),
        ("x" * 5000, ""),
    ],
)
def test_a_folder_that_is_not_there(tmp_path, monkeypatch, path, hint):
    """Also where Python gives it: no folder is made, and no lock tried."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first" / "checkpoints").mkdir(parents=True)
    for call in (checkpoints.newest, checkpoints.run_to_continue, sources.recorded):
        error = refused(lambda call=call: call(Path(path)), f"{path}: no such folder{hint}; give the folder of a run, ")
        assert error.option == ("" if call is checkpoints.newest else "resume")
    refused(lambda: checkpoints.newest(Path("runs/first")), "runs/first: no intact checkpoint there; give a run")


def test_scores_of_another_figure_are_not_compared(run):
    run.keep = 1
    run.save(1, score=0.9)
    for step, score in ((2, 0.3), (3, 0.2)):
        run.save(step, score=score, score_choice="max:f1")
    run.save(4)
    assert checkpoints.newest(run.folder / "best")[1].position.step == 2
    assert run.names() == ["2", "4"]


def test_an_older_checkpoint_begins_a_new_run(run, tmp_path):
    older = run.save(1, score=1.0)
    newest = run.save(2)
    assert [run_to_continue(path) for path in (run.folder, newest)] == [run.folder] * 2
    assert [run_to_continue(path) for path in (older, run.folder / "best")] == [None] * 2


def test_a_checkpoint_stands_for_its_run_in_commands_about_runs(run, monkeypatch):
    path = run.save(1, score=1.0)
    (run.folder / "config.json").write_text("{}")
    (run.folder / "metrics.jsonl").write_text("")
    assert [chosen_run(place) for place in (run.folder, run.folder / "best", path)] == [run.folder] * 3
    monkeypatch.chdir(path.parent)
    assert chosen_run(Path(path.name)) == run.folder


VALUES = {3: (3.0, 0.2), 6: (1.5, 0.9), 9: (2.0, 0.9)}


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """A run with a checkpoint and an evaluation at each of three steps, and a checkpoint within an epoch."""
    (tmp_path / "checkpoints").mkdir()
    known = [Entry(tmp_path / "checkpoints" / f"step-{step}", step, step / 10, step) for step in (3, 6, 7, 9)]
    monkeypatch.setattr(checkpoint_folder, "entries", lambda _: known)
    writer = MetricsWriter(tmp_path)
    for step, (perplexity, hit) in VALUES.items():
        writer.write("test", step, epoch=step / 3, loss=1.0 / step, perplexity=perplexity, hit=hit)
    writer.close()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("best", 9),
        ("best:min:perplexity", 6),
        ("best:max:perplexity", 3),
        ("best:max:hit", 9),  # of equal ones the newest
        ("best:min:loss", 9),
        ("checkpoints/step-7", 7),
        ("", None),
    ],
)
def test_by_any_figure(evaluated, name, step):
    (evaluated / "checkpoints" / "step-7").mkdir()
    (evaluated / "checkpoints" / "step-7" / MANIFEST).write_text("{}")
    assert best.step_of(evaluated / name) == step


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("best:min:perplexit", "has measured no 'perplexit' (did you mean perplexity?)"),
        ("best:perplexity", "does not say whether the greatest or the least value is the best"),
    ],
)
def test_what_was_not_measured(evaluated, name, reason):
    refused(lambda: best.step_of(evaluated / name), reason)
    (evaluated / "metrics.jsonl").write_text('{"kind": "test", "step": 5, "epoch": 1, "loss": 1.0}\n')
    with pytest.raises(UserError, match="no evaluation has given a checkpoint"):
        best.step_of(evaluated / "best:min:loss")


# Files.


@pytest.fixture()
def small(monkeypatch):
    """Files of 300 bytes of arrays."""
    monkeypatch.setattr(checkpoints, "FILE_BYTES", 300)


def same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert (array.shape, array.dtype.name) == (expected[name].shape, expected[name].dtype.name), name
        assert np.array_equal(array, expected[name]), name
        assert array.flags.writeable, name


@pytest.mark.usefixtures("small")
def test_divided_arrays_are_loaded_as_saved(tmp_path):
    """An array larger than a file has one of its own; they are those of the library."""
    state = OptimizerState({f"momentum/{i}": np.full(60, i, np.float32) for i in range(4)})
    path = save_checkpoint(tmp_path, weights=ARRAYS, optimizer=state)
    loaded = checkpoints.load(path)
    same(loaded.weights, ARRAYS)
    same(loaded.optimizer.arrays, state.arrays)
    assert checkpoint_folder.is_whole(path)
    names = [f"weights-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(one.name for one in path.glob("weights*")) == names
    found = [sorted(load_file(path / name)) for name in names]
    assert found == [["empty", "scalar", "transposed"], ["large"], ["big_endian", "flags", "half"]]


def test_a_file_and_its_arrays_are_in_memory_once_each_while_it_is_read(tmp_path):
    large = np.zeros(1 << 20, np.float32)
    path = save_checkpoint(tmp_path, weights={"large": large})
    tracemalloc.start()
    try:
        checkpoints.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2.2 * large.nbytes
    finally:
        tracemalloc.stop()


OWN = [{"error": np.full(9, rank, np.float32)} for rank in range(4)]
"""What each of four ranks has by itself."""


@pytest.fixture
def of_ranks(tmp_path):
    """A checkpoint of four ranks, of which rank 2 does not reach the folder of rank 0."""
    folder = tmp_path / "run" / "checkpoints"
    folder.parent.mkdir()
    draft = checkpoints.begin(folder, 7)
    own = [
        checkpoints.write_own(tmp_path / "other host" if rank == 2 else draft, rank, OWN[rank]) for rank in (1, 2, 3)
    ]
    assert own[1] is None
    sent = ({}, OWN[2], {})
    given = {"position": Position(step=7), "optimizer": OptimizerState(OWN[0]), "other_ranks": sent}
    return save_checkpoint(folder, draft=draft, own=own, **given)


def test_each_rank_writes_its_own_file_or_sends_its_arrays(of_ranks):
    loaded = checkpoints.load(of_ranks)
    for arrays, expected in zip([loaded.optimizer.arrays, *loaded.other_ranks], OWN, strict=True):
        same(arrays, expected)
    assert sorted(one.name for one in of_ranks.glob("rank-*")) == [f"rank-0000{i}.safetensors" for i in (1, 2, 3)]
    assert [one.name for one in of_ranks.parent.iterdir()] == [of_ranks.name]


def test_a_file_that_a_rank_has_not_written_whole(tmp_path):
    tmp_path.joinpath("run").mkdir()
    draft = checkpoints.begin(tmp_path / "run" / "checkpoints", 0)
    hashed = checkpoints.write_own(draft, 1, OWN[1])
    os.truncate(draft / "rank-00001.safetensors", 9)
    with pytest.raises(Damaged, match="is not what its rank has written"):
        save_checkpoint(draft.parent, draft=draft, own=[hashed], other_ranks=({},))
    assert not [*draft.parent.iterdir()]


def rank_file(path, number):
    return path / f"rank-0000{number}.safetensors"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: rank_file(path, 3).unlink(),
        lambda path: rank_file(path, 3).write_bytes(rank_file(path, 3).read_bytes()[:-1] + b"x"),
        lambda path: os.truncate(rank_file(path, 2), 60),
        lambda path: shutil.copy(rank_file(path, 2), rank_file(path, 1)),
        lambda path: rename_in_manifest(path, "rank-00003", "rank-00004"),
    ],
    ids=["missing", "flipped", "cut", "swapped", "not listed"],
)
def test_a_damaged_part_is_noticed(of_ranks, damage):
    damage(of_ranks)
    with pytest.raises(Damaged, match=of_ranks.name):
        checkpoints.load(of_ranks)
    assert not checkpoint_folder.is_whole(of_ranks)


def rename_in_manifest(path, name, other):
    manifest = path / MANIFEST
    manifest.write_text(manifest.read_text().replace(name, other))


def test_a_full_disk_gets_its_space_back(tmp_path, monkeypatch):
    older = save_checkpoint(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(handle):
        raise full

    monkeypatch.setattr(os, "fsync", fail)
    assert checkpoints.write_own(tmp_path, 1, OWN[1]) is None, "rank 0 tells it"
    (tmp_path / "rank-00001.safetensors").unlink()
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [older.name]
    checkpoints.load(older)
