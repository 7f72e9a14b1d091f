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
DIFFERENCES = {
    "threads": ({"threads": 2}, "threads"),
    "instruction set": ({"instruction_set": "avx2"}, "isa"),
    "vendor": ({"vendor": "AuthenticAMD"}, ""),
    "device": ({"device": "NVIDIA H100"}, "device"),
    "libc": ({"libc": "glibc 2.28"}, ""),
    "other variable": ({"variables": {"MKL_CBWR": "AVX2"}}, "isa"),
    "no variable": ({"variables": {}}, "isa"),
    "one more variable": ({"variables": {**LOCAL["variables"], "ONEDNN_MAX_CPU_ISA": "AVX2"}}, "isa"),
    "version": ({"versions": {**LOCAL["versions"], "numpy": "1.26.3"}}, ""),
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
    record = {**LOCAL, **changed}
    return Checkpoint({}, OptimizerState({}), Position(), "lenet", {}, framework, "sgd", "", arithmetic=record)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_between_ranks(name):
    changed, option = DIFFERENCES[name]
    with pytest.raises(UserError) as raised:
        arithmetic.check_same_on_ranks(Ranks(**changed), LOCAL)
    assert (raised.value.option, raised.value.rank) == (option, 1)
    assert "node1" in raised.value.reason and "node2" in raised.value.reason
    assert raised.value.remedy


def test_ranks_that_agree():
    arithmetic.check_same_on_ranks(Ranks(processor="another model"), LOCAL)


def messages(caplog):
    """Each once: a test before may have given the logger another handler."""
    return {record.getMessage() for record in caplog.records}


def test_other_processors_are_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(arithmetic.log, "propagate", True)
    with caplog.at_level(logging.WARNING, arithmetic.log.name):
        arithmetic.warn_of_processors(Ranks(), LOCAL)
        assert not caplog.records
        arithmetic.warn_of_processors(Ranks(processor="Xeon of tomorrow"), LOCAL)
        arithmetic.check_resumed(SHARDED, LOCAL, "runs/a", saved(processor="Xeon of yesterday"))
    assert len(messages(caplog)) == 2


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_at_a_resume(name):
    changed, option = DIFFERENCES[name]
    with pytest.raises(UserError) as raised:
        arithmetic.check_resumed(SHARDED, LOCAL, "runs/a", saved(**changed))
    assert raised.value.option == option
    assert "--shards 0" in raised.value.remedy


@pytest.mark.parametrize(
    ("config", "checkpoint", "warnings"),
    [
        (SHARDED, saved(), 0),
        (dataclasses.replace(SHARDED, shards=8), saved(threads=2), 1),
        (dataclasses.replace(SHARDED, shards=0), saved(threads=2), 1),
        (SHARDED, dataclasses.replace(saved(), arithmetic={}), 1),
        (SHARDED, saved(framework="mxnet", versions={"mxnet": "1.9.1"}), 1),
        (Config(), dataclasses.replace(saved(), arithmetic={}), 0),
    ],
)
def test_what_a_resume_may_change(caplog, monkeypatch, config, checkpoint, warnings):
    monkeypatch.setattr(arithmetic.log, "propagate", True)
    with caplog.at_level(logging.WARNING, arithmetic.log.name):
        arithmetic.check_resumed(config, LOCAL, "runs/a", checkpoint)
    assert len(messages(caplog)) == warnings


def test_the_record_of_this_process():
    found = arithmetic.record(Config(framework="torch", shards=4, isa="avx2"), FakeLearner())
    assert set(found) == set(LOCAL)
    assert (found["shards"], found["instruction_set"], found["device"]) == (4, "avx2", "cpu")
    assert found["threads"] >= 1
    assert "numpy" in found["versions"]


def test_a_checkpoint_keeps_it(tmp_path):
    path = checkpoints.save(tmp_path / "checkpoints", saved(), 3)
    assert checkpoints.load(path).arithmetic == LOCAL


@pytest.mark.parametrize("record", [{"threads": "1"}, {"versions": ["torch"]}, {"vendor": {}}, {"variables": {"A": 1}}])
def test_a_record_that_no_run_writes(tmp_path, record):
    checkpoint = dataclasses.replace(saved(), arithmetic=record)
    with pytest.raises(checkpoints.Damaged):
        checkpoints.save(tmp_path / "checkpoints", checkpoint, 3)
