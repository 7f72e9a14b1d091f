"""Training again: what is compared with the record of the run, and what is said of a difference."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_learner import WEIGHTS, numbered, use_fakes

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import BitsDiffer
from hvdtrain.runs import checkpoints
from hvdtrain.runs.segment import Segment
from hvdtrain.training import replay
from hvdtrain.training import train as training
from hvdtrain.training.consistency import checksum
from hvdtrain.training.replay import ArrayDifference, Mismatch, first_difference


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of the fake learner with hashes at the steps 2, 4, 5, 6, 8 and 10."""
    use_fakes(monkeypatch, numbered(40))
    for name in ("load_target", "build_learner"):
        monkeypatch.setattr(replay, name, getattr(training, name))
    monkeypatch.setattr(replay, "_check_target", lambda *_: None)
    options = RuntimeOptions(runs=tmp_path, name="run", checkpoint_every=2, keep=9, quiet=True)
    return training.train(Config(strategy="single", epochs=2, batch_size=8), options, list)


def replayed(folder, first=None, last=None):
    segment = Segment.choose(folder, first, last)
    return replay.replay(segment, *replay.options(segment, quiet=True))


def changed(folder, step):
    """Another hash in the record of the run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    mark = f'"kind": "checkpoint", "step": {step},'
    lines = [line.replace(checksum(WEIGHTS), "0" * 16) if mark in line else line for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("steps", "compared"), [((None, None), 2), ((0, None), 6), ((2, 6), 4), ((4, 5), 2)])
def test_each_recorded_hash_is_compared_and_nothing_changes(run, tmp_path, monkeypatch, steps, compared):
    monkeypatch.setattr(replay.tempfile, "tempdir", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    verdict = replayed(run, *steps)
    assert verdict == (checksum(WEIGHTS), compared, None, None, False)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_another_hash_on_the_way_is_found(run, monkeypatch):
    changed(run, 5)
    assert replayed(run, 6, 10).mismatch is None
    made = []
    monkeypatch.setattr(replay, "explain", lambda segment, verdict, *_: made.append(verdict) or "other bits")
    with pytest.raises(BitsDiffer) as failed:
        replayed(run, 4, 10)
    assert (failed.value.exit_status, failed.value.resumable) == (1, False)
    (verdict,) = made
    assert verdict.mismatch == Mismatch(5, "0" * 16, checksum(WEIGHTS))
    assert verdict.difference is None and verdict.checkpoint_agrees


def test_an_array_of_the_checkpoint_that_differs_is_named(run):
    path, saved = checkpoints.newest(run)
    *_, last = saved.weights
    saved.weights[last] = saved.weights[last].copy()
    saved.weights[last].reshape(-1).view(np.uint32)[0] ^= 1
    shutil.rmtree(path)
    checkpoints.save(run / "checkpoints", saved, keep=9)
    changed(run, 10)
    with pytest.raises(BitsDiffer) as failed:
        replayed(run, 8, 10)
    assert [word for word in ("0" * 16, checksum(WEIGHTS), last) if word not in failed.value.reason] == []


def test_the_first_array_that_differs():
    saved = {name: value.copy() for name, value in WEIGHTS.items()}
    assert first_difference(WEIGHTS, saved, 3) is None
    *_, last = saved
    saved[last].reshape(-1).view(np.uint32)[0] ^= 1  # one bit
    difference = first_difference(WEIGHTS, saved, 3)
    assert difference and difference[:2] == (3, last) and difference.largest < 1e-6 and difference.arrays == 1
    del saved[last]
    assert first_difference(WEIGHTS, saved, 3) == ArrayDifference(3, last, np.inf, 1)
    zero, nan = np.zeros(2, np.float32), np.full(2, np.nan, np.float32)
    assert first_difference({"w": nan}, {"w": nan.copy()}, 1) is None
    assert first_difference({"w": zero}, {"w": -zero}, 1) == ArrayDifference(1, "w", 0.0, 1)


def test_options_stay_those_of_the_run(run):
    """The schedule depends on --epochs, so the replay ends by --max-steps."""
    segment = Segment.choose(run, 2, 6)
    config, runtime = replay.options(segment)
    expected = Config(strategy="single", epochs=2, batch_size=8, max_steps=6)
    assert config == expected
    assert runtime.resume == segment.start.path and runtime.name and not runtime.auto_resume
    assert replay.options(segment, "ring")[0] == dataclasses.replace(expected, strategy="ring")


def test_other_versions_threads_and_ranks_are_reasons(run, monkeypatch):
    segment = Segment.choose(run)
    here = {**segment.session.record.table("arithmetic").values, "versions": {"numpy": "9", "python": "3"}}
    versions = segment.session.record.table("versions").texts()

    def reasons(strategy="single", size=1, **changed):
        config, group = dataclasses.replace(segment.config, strategy=strategy), SimpleNamespace(size=size)
        return replay._reasons(segment, SimpleNamespace(config=config, group=group, arithmetic={**here, **changed}))

    assert reasons(versions={name: versions[name] for name in ("numpy", "python")}) == []
    numpy, python = reasons()
    assert "numpy is 9" in numpy and versions["python"] in python
    threads, strategy = reasons("ring", 2, threads=99, versions={})
    assert "99" in threads and "ring on 2" in strategy
    verdict = replay.Verdict("1" * 16, 1, Mismatch(10, "0" * 16, "1" * 16))
    assert replay.explain(segment, verdict, [threads]).endswith(threads)
