"""A run that is resumed or trained again: what may change, each row once in an epoch, and what is compared."""

import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fake_learner import NETWORK, WEIGHTS, FakeLearner, numbered, use_fakes
from support.jobs import ROOT
from support.networks import shaped
from support.rank_threads import on_all_ranks
from support.untrusted import changed_state, rewrite

from hvdtrain.collectives.encoding import decode, encode
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.option import Resume, key
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import FACTS
from hvdtrain.errors import BitsDiffer, UserError
from hvdtrain.interfaces.learner import OptimizerState, Position
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import Dense
from hvdtrain.runs import checkpoints
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.records import texts
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import replay
from hvdtrain.training import train as training
from hvdtrain.training.consistency import checksum
from hvdtrain.training.run import RunContext
from hvdtrain.training.saver import Saver
from hvdtrain.training.state import check_position, recounted, resume
from hvdtrain.training.train import train

OTHER = shaped(Network((*NETWORK.network.layers[:-1], Dense(3), NETWORK.network.layers[-1])), NETWORK.input_shape)
BATCHES, REMAINDERS = st.integers(1, 20), st.sampled_from(["drop", "pad", "exact"])


def test_reference_says_what_a_resume_may_change():
    """The table of the page has the options of each rule; where no row is, an option applies from there on."""
    page = (ROOT / "docs" / "reference.md").read_text()
    table = page.partition("| options | if they differ |")[2].partition("\n\n")[0]
    rows = [set(re.findall(r"`--([a-z-]+)`", row.split("|")[1])) for row in table.splitlines() if row.count("|") > 2]
    facts = FACTS.items()
    by_rule = {rule: {key(name) for name, about in facts if about.resume is rule} for rule in Resume}
    assert rows[1:5] == [
        by_rule[Resume.SAME] | by_rule[Resume.DATA],
        by_rule[Resume.NETWORK] - {"arg"},
        by_rule[Resume.POSITION],
        by_rule[Resume.STATE],
    ]


@contextlib.contextmanager
def fakes(samples):
    """The fake learners that training uses inside, and a folder for its runs; files are not flushed to disk."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(os, "fsync", lambda handle: None)
        yield use_fakes(patch, numbered(samples)), Path(folder)


def train_in(runs, config):
    train(config, RuntimeOptions(runs=runs, name="run", resume="auto", quiet=True), lambda: [])
    return checkpoints.newest(runs / "run")[1].position


@pytest.mark.guarantee("each-row-once")
@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 2), st.lists(st.tuples(BATCHES, REMAINDERS, st.integers(1, 5)), max_size=3))
@example(40, 2, [(7, "drop", 6)])
@example(40, 2, [(7, "pad", 7), (7, "drop", 1)])
def test_each_row_is_taken_once_in_an_epoch(samples, epochs, sessions):
    """Sessions of a few steps with another batch size and --remainder each; the last one trains to the end."""
    with fakes(samples) as (learners, runs):
        position = Position()
        for batch, remainder, steps in [*sessions, (7, "pad", 0)]:
            config = Config(epochs=epochs, batch_size=min(batch, samples), remainder=remainder)
            start = recounted(config, position, samples, 1).step
            config = dataclasses.replace(config, max_steps=start + steps if steps else 0)
            position = train_in(runs, config)
    taken = sum((one.taken for one in learners), Counter())
    dropped = max((batch - 1 for batch, remainder, _ in sessions if remainder == "drop"), default=0)
    assert position.epoch == epochs
    assert max(taken.values()) <= epochs
    assert epochs * samples - taken.total() <= epochs * dropped


@pytest.mark.guarantee("each-row-once")
@given(st.integers(1, 300), BATCHES, BATCHES, st.integers(1, 9), REMAINDERS, REMAINDERS, st.integers(0, 99), st.data())
def test_a_recounted_position_is_one_of_its_run(samples, batch, new, ranks, remainder, changed, epoch, data):
    """Any position of a run, resumed by another number of ranks: it is inside of an epoch, and can be resumed again."""
    config = Config(batch_size=batch, remainder=remainder)
    rows = data.draw(st.integers(0, max(samples - 1, 0) // batch)) * batch
    position = recounted(config, Position(epoch, rows, 0, batch), samples, 1)
    other = Config(batch_size=new, batch_scope="per-rank", remainder=changed)
    moved = recounted(other, position, samples, ranks)
    check_position(Path("a"), moved, samples)
    assert moved.global_batch == new * ranks
    assert recounted(other, moved, samples, ranks) == moved or new * ranks > samples
    assert (moved.epoch, moved.rows_in_epoch) in {(position.epoch, position.rows_in_epoch), (position.epoch + 1, 0)}


@pytest.mark.parametrize(
    "change",
    [
        {"rows_in_epoch": 10**9}, {"rows_in_epoch": 41}, {"rows_in_epoch": 16}, {"step": 3}, {"step": 0},
        {"epoch": 1}, {"epoch": 10**18}, {"global_batch": 0}, {"global_batch": 10**18},
    ],
    ids=str,
)  # fmt: skip
def test_a_position_that_no_run_has_is_an_error(change):
    with fakes(40) as (_, runs):
        config = Config(batch_size=8, epochs=2, max_steps=4)
        position = train_in(runs, config)
        assert position == Position(0, 32, 4, 8, 0)
        path = checkpoints.newest(runs / "run")[0]
        rewrite(path, "state.json", changed_state(path, position={**vars(position), **change}))
        with pytest.raises(UserError, match="no run on 40 rows is at step"):
            train_in(runs, dataclasses.replace(config, max_steps=0))


@pytest.mark.parametrize(
    ("config", "target", "samples", "message"),
    [
        (Config(epochs=2, init="book"), NETWORK, 40, "--init is book here and xavier in the checkpoint"),
        (Config(epochs=2), NETWORK, 39, "the fingerprint of --data"),
        # The file that --model names has changed since, and --resume auto reads it again.
        (Config(epochs=2), OTHER, 40, r"--model lenet is not that of the checkpoint \(lenet\), or its layers"),
    ],
    ids=["option", "data", "layers"],
)
def test_what_must_be_the_same(config, target, samples, message):
    """A run that cannot be resumed also leaves no folder of its own."""
    with fakes(40) as (_, runs):
        train_in(runs, Config(epochs=1))
        given = NetworkTarget(target), numbered(samples)
        for options in ({"name": "run", "resume": "auto"}, {"resume": runs / "run", "name": "new"}):
            loaded = mock.patch("hvdtrain.training.train.load_target", lambda *_: given)  # ends before the fakes
            with loaded, pytest.raises(UserError, match=message):
                train(config, RuntimeOptions(runs=runs, **options), lambda: [])
        assert os.listdir(runs) == ["run"]


def test_options_stay_where_they_are_on_a_full_disk(monkeypatch):
    with fakes(40) as (_, runs):
        train_in(runs, Config(epochs=1))
        before = {path.name: path.read_bytes() for path in (runs / "run").glob("config*.json")}
        original = Path.write_bytes

        def write_bytes(path, data):
            if path.name.startswith(".config.json"):
                raise OSError(28, "No space left on device")
            return original(path, data)

        with monkeypatch.context() as patch, pytest.raises(Exception, match="the record of this run cannot be written"):
            patch.setattr(Path, "write_bytes", write_bytes)
            train_in(runs, Config(epochs=2))
        assert {path.name: path.read_bytes() for path in (runs / "run").glob("config*.json")} == before
        train_in(runs, Config(epochs=2))
        records = [json.loads((runs / "run" / name).read_text()) for name in ("config-1.json", "config.json")]
        assert [one["config"]["epochs"] for one in records] == [1, 2]


class OneOfTwo(SingleProcess):
    """A rank of two. said: what rank 0 broadcast."""

    size = 2

    def __init__(self, rank: int, said: list) -> None:
        self.rank, self.said = rank, said

    def broadcast(self, value, root=0):
        if self.rank == 0:
            self.said.append(value)
        return self.said[-1]


def test_all_ranks_refuse_what_only_rank_0_reads(tmp_path):
    """A rank that only loses rank 0, in the collective that tells it the checkpoint, prints a traceback instead."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()  # so that it is no run which made no step
    options, said, reasons = RuntimeOptions(runs=tmp_path, name="run"), [], []
    for rank in (0, 1):
        learner = FakeLearner()
        learner.group = OneOfTwo(rank, said)
        with pytest.raises(UserError, match="exists") as raised:
            resume(RunContext(Config(), options, NetworkTarget(NETWORK), learner, numbered(8)))
        reasons.append(raised.value.args)
    assert reasons[0] == reasons[1] and decode(encode(said[0])) == said[0]


class LocalState(FakeLearner):
    """A learner of which each rank has an optimizer state of its own. sent: gets the roots of what goes over links."""

    state_by_rank = True

    def __init__(self, group, sent):
        super().__init__()
        self.group = group
        send = group.broadcast_bytes
        group.broadcast_bytes = lambda values, root: (sent.append(root), send(values, root))

    def optimizer_state(self):
        return OptimizerState({"momentum/w": np.full(9, self.group.rank, np.float32)})


@pytest.mark.parametrize(("elsewhere", "expected"), [(set(), set()), ({2}, {2})])
def test_a_rank_sends_its_state_only_where_it_does_not_reach_the_folder(tmp_path, monkeypatch, elsewhere, expected):
    sent, write_own = [], checkpoints.write_own

    def written(draft, rank, arrays):
        return write_own(tmp_path / "missing" if rank in elsewhere else draft, rank, arrays)

    def save(group):
        learner = LocalState(group, sent)
        config = Config(batch_size=6, sync_every=2)
        run = RunContext(config, RuntimeOptions(), NetworkTarget(NETWORK), learner, numbered(30), folder=tmp_path)
        Saver(run).save(Position())

    monkeypatch.setattr(checkpoints, "write_own", written)
    on_all_ranks(3, save)
    (path,) = (tmp_path / "checkpoints").iterdir()
    saved = checkpoints.load(path)
    ranks = [saved.optimizer.arrays, *saved.other_ranks]
    assert [arrays["momentum/w"].tolist() for arrays in ranks] == [[rank] * 9 for rank in range(3)]
    assert {*sent} == expected


def test_a_checkpoint_that_is_written_again_leaves_no_draft(tmp_path):
    """As where the ranks change after rank 0 has written it: all do again what was due."""

    def save(group):
        group.survives = True
        run = RunContext(
            Config(batch_size=6, sync_every=2), RuntimeOptions(), NetworkTarget(NETWORK), LocalState(group, []),
            numbered(30), folder=tmp_path,
        )  # fmt: skip
        saver = Saver(run)
        for _ in range(2):
            saver.save(Position(step=3))

    on_all_ranks(2, save)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_a_checkpoint_that_is_no_longer_the_newest_does_not_go_on_in_its_run(run, monkeypatch):
    """Another job has written a newer one, until this one had the run's lock."""
    runtime = RuntimeOptions(runs=run.parent, resume=run / "checkpoints" / "step-00000010", quiet=True)
    newest, acquire = checkpoints.newest(run)[1], RunLock.acquire

    def acquire_late(lock, folder):
        position = dataclasses.replace(newest.position, step=newest.position.step + 2)
        checkpoints.save(folder / "checkpoints", dataclasses.replace(newest, position=position), 9)
        acquire(lock, folder)

    monkeypatch.setattr(RunLock, "acquire", acquire_late)
    with pytest.raises(UserError, match="newer checkpoint"):
        training.train(Config(strategy="single", epochs=3, batch_size=8), runtime, list)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of the fake learner with hashes at the steps 2, 4, 5, 6, 8 and 10."""
    use_fakes(monkeypatch, numbered(40))
    for name in ("load_target", "build_learner"):
        monkeypatch.setattr(replay, name, getattr(training, name))
    options = RuntimeOptions(runs=tmp_path, name="run", checkpoint_every="2", keep=9, quiet=True)
    return training.train(Config(strategy="single", epochs=2, batch_size=8), options, list)


def replayed(folder, first=None, last=None):
    return replay.replay(replay.choose(folder, first, last))


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
    found = replayed(run, *steps)
    assert (found.parameters, found.compared, found.difference) == (checksum(WEIGHTS), compared, "")
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("step", [5, 4])
def test_another_hash_is_found(run, step):
    """On the way, and of a checkpoint that was changed: its sums are correct, and a replay begins with its weights."""
    changed(run, step)
    assert not replayed(run, 6, 10).difference
    with pytest.raises(BitsDiffer) as failed:
        replayed(run, 4, 10)
    assert (failed.value.exit_status, failed.value.resumable) == (1, False)
    hashes = f"{run} recorded {'0' * 16}, and here is {checksum(WEIGHTS)}"
    assert failed.value.reason == f"different bits at step {step}: {hashes}"


def test_other_data_and_layers_are_refused(run):
    segment = replay.choose(run)
    for values in ({"data": "0" * 16}, {"network": {"layers": []}}):
        other = msgspec.structs.replace(segment.record, **values)
        with pytest.raises(UserError, match="its data are not those that"):
            replay.replay(segment._replace(record=other))


def test_other_versions_threads_and_ranks_are_reasons(run):
    segment = replay.choose(run)
    here = {**segment.record.arithmetic, "versions": {"numpy": "9", "python": "3"}}
    versions = texts(segment.record.versions)

    def reasons(strategy="single", size=1, **changed):
        config, group = dataclasses.replace(segment.config, strategy=strategy), SimpleNamespace(size=size)
        return replay._reasons(
            segment, SimpleNamespace(config=config, group=group, in_shards=False, arithmetic={**here, **changed})
        )

    assert reasons(versions={name: versions[name] for name in ("numpy", "python")}) == []
    numpy, python = reasons()
    assert "numpy is 9" in numpy and versions["python"] in python
    threads, strategy = reasons("ring", 2, threads=99, versions={})
    assert "99" in threads and "single on 1 rank" in strategy
