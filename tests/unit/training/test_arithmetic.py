"""What decides the bits is compared between ranks and at a resume."""

import dataclasses
import logging

import pytest
from support.fake_learner import FakeLearner

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.runs import checkpoints
from hvdtrain.training import arithmetic

SHARDED = Config(framework="torch", shards=4)
LOCAL = {
    "shards": 4,
    "threads": 1,
    "instruction_set": "avx512",
    "vendor": "GenuineIntel",
    "device": "cpu",
    "libc": "glibc 2.36",
    "variables": {"MKL_CBWR": "COMPATIBLE"},
    "processor": "Xeon",
    "versions": {"torch": "2.4.0", "numpy": "1.26.4"},
}


class Ranks:
    """Two ranks on two hosts, of which rank 1 has other values."""

    def __init__(self, **changed):
        self._other = {**LOCAL, **changed}

    def gather(self, value):
        if isinstance(value, dict):
            return [value, dict(arithmetic._values(self._other))]
        return ["node1", "node2"] if value != LOCAL["processor"] else [value, self._other["processor"]]


def saved(framework="torch", **changed):
    record = {**LOCAL, **changed} if framework else {}
    made = Checkpoint({}, OptimizerState({}), Position(), "lenet", {}, framework or "torch", "sgd", "")
    return dataclasses.replace(made, arithmetic=record)


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"threads": 2}, "threads"),
        ({"instruction_set": "avx2"}, "isa"),
        ({"vendor": "AuthenticAMD"}, ""),
        ({"device": "NVIDIA H100"}, "device"),
        ({"libc": "glibc 2.28"}, ""),
        ({"variables": {"MKL_CBWR": "AVX2"}}, "isa"),
        ({"variables": {}}, "isa"),
        ({"variables": {**LOCAL["variables"], "ONEDNN_MAX_CPU_ISA": "AVX2"}}, "isa"),
        ({"versions": {**LOCAL["versions"], "numpy": "1.26.3"}}, ""),
    ],
    ids=str,
)
def test_a_difference_between_ranks_and_at_a_resume(changed, option):
    with pytest.raises(UserError) as raised:
        arithmetic.check_same_on_ranks(Ranks(**changed), LOCAL)
    assert (raised.value.option, raised.value.rank) == (option, 1)
    assert "node1" in raised.value.reason and "node2" in raised.value.reason and raised.value.remedy
    with pytest.raises(UserError) as raised:
        arithmetic.check_resumed(SHARDED, LOCAL, "runs/a", saved(**changed))
    assert raised.value.option == option and "--shards 0" in raised.value.remedy


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What is logged so far, each message once: a test before may have given the logger another handler."""
    monkeypatch.setattr(arithmetic.log, "propagate", True)
    with caplog.at_level(logging.WARNING, arithmetic.log.name):
        yield lambda: {record.getMessage() for record in caplog.records}


def test_other_processors_are_a_warning(warnings):
    arithmetic.check_same_on_ranks(Ranks(processor="another model"), LOCAL)
    arithmetic.warn_of_processors(Ranks(), LOCAL)
    assert not warnings()
    arithmetic.warn_of_processors(Ranks(processor="Xeon of tomorrow"), LOCAL)
    arithmetic.check_resumed(SHARDED, LOCAL, "runs/a", saved(processor="Xeon of yesterday"))
    assert len(warnings()) == 2


@pytest.mark.parametrize(
    ("config", "checkpoint", "count"),
    [
        (SHARDED, saved(), 0),
        (dataclasses.replace(SHARDED, shards=8), saved(threads=2), 1),
        (dataclasses.replace(SHARDED, shards=0), saved(threads=2), 1),
        (SHARDED, saved(framework=""), 1),
        (SHARDED, saved(framework="mxnet", versions={"mxnet": "1.9.1"}), 1),
        (Config(), saved(framework=""), 0),
    ],
)
def test_what_a_resume_may_change(warnings, config, checkpoint, count):
    arithmetic.check_resumed(config, LOCAL, "runs/a", checkpoint)
    assert len(warnings()) == count


def test_the_record_of_this_process():
    found = arithmetic.record(Config(framework="torch", shards=4, isa="avx2"), FakeLearner())
    assert set(found) == set(LOCAL)
    assert (found["shards"], found["instruction_set"], found["device"]) == (4, "avx2", "cpu")
    assert found["threads"] >= 1 and "numpy" in found["versions"]


def test_a_checkpoint_keeps_it(tmp_path):
    path = checkpoints.save(tmp_path / "checkpoints", saved(), 3)
    assert checkpoints.load(path).arithmetic == LOCAL
    for record in {"threads": "1"}, {"versions": ["torch"]}, {"vendor": {}}, {"variables": {"A": 1}}:
        with pytest.raises(checkpoints.Damaged):  # no run writes it
            checkpoints.save(tmp_path / "checkpoints", dataclasses.replace(saved(), arithmetic=record), 3)
