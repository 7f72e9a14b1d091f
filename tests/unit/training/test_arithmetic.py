"""What is compared between ranks and at a resume: options, layers, data, and what decides the bits."""

import contextlib
import dataclasses
import logging
import re
from unittest import mock

import pytest
from support.jobs import ROOT
from support.networks import CIFAR_LENET, LENET

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import FACTS
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.runs import checkpoints
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import consistency
from hvdtrain.training.run import RunContext

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
            return [value, dict(consistency._values(self._other))]
        return ["node1", "node2"] if value != LOCAL["processor"] else [value, self._other["processor"]]


def saved(framework="torch", **changed):
    record = {**LOCAL, **changed} if framework else {}
    return Checkpoint(Position(), "lenet", {}, framework or "torch", "sgd", "", arithmetic=record)


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"threads": 2}, "threads"),
        ({"instruction_set": "avx2"}, "isa"),
        ({"device": "NVIDIA H100"}, "device"),
        ({"libc": "glibc 2.28"}, ""),
        ({"variables": {"MKL_CBWR": "AVX2"}}, "isa"),
        ({"variables": {**LOCAL["variables"], "ONEDNN_MAX_CPU_ISA": "AVX2"}}, "isa"),
        ({"versions": {**LOCAL["versions"], "numpy": "1.26.3"}}, ""),
    ],
    ids=str,
)
def test_a_difference_between_ranks_and_at_a_resume(changed, option):
    with pytest.raises(UserError) as raised:
        consistency.check_same_arithmetic(Ranks(**changed), LOCAL)
    assert (raised.value.option, raised.value.rank) == (option, 1)
    assert "node1" in raised.value.reason and "node2" in raised.value.reason and raised.value.remedy
    with pytest.raises(UserError) as raised:
        consistency.check_resumed(SHARDED, LOCAL, "runs/a", saved(**changed))
    assert raised.value.option == option and "--shards 0" in raised.value.remedy


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What is logged so far, each message once: a test before may have given the logger another handler."""
    monkeypatch.setattr(consistency.log, "propagate", True)
    with caplog.at_level(logging.WARNING, consistency.log.name):
        yield lambda: {record.getMessage() for record in caplog.records}


def test_other_processors_are_a_warning(warnings):
    consistency.check_same_arithmetic(Ranks(processor="another model"), LOCAL)
    consistency.warn_of_processors(Ranks(), LOCAL)
    assert not warnings()
    consistency.warn_of_processors(Ranks(processor="Xeon of tomorrow"), LOCAL)
    consistency.check_resumed(SHARDED, LOCAL, "runs/a", saved(processor="Xeon of yesterday"))
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
    consistency.check_resumed(config, LOCAL, "runs/a", checkpoint)
    assert len(warnings()) == count


def test_a_checkpoint_keeps_it(tmp_path):
    path = checkpoints.save(tmp_path / "checkpoints", saved(), 3)
    assert checkpoints.load(path).arithmetic == LOCAL
    for record in {"threads": "1"}, {"versions": ["torch"]}, {"vendor": {}}, {"variables": {"A": 1}}:
        with pytest.raises(checkpoints.Damaged):  # no run writes it
            checkpoints.save(tmp_path / "checkpoints", dataclasses.replace(saved(), arithmetic=record), 3)


FREE_PER_RANK = {name for name, about in FACTS.items() if about.per_rank}
NAMES = [one.name for one in dataclasses.fields(RuntimeOptions)]


class Recording:
    """One rank. values: what it compared."""

    def gather(self, own):
        self.values = own
        return [own]


class WithOther:
    """Two ranks; rank 1 compares these values, among those that rank 0 compares."""

    def __init__(self, **values):
        self._values = values

    def gather(self, own):
        return [own, {key: self._values.get(key, value) for key, value in own.items()}]


def compare(group, network=LENET, data="data"):
    run = mock.Mock(config=Config(), runtime=RuntimeOptions(), target=NetworkTarget(network))
    run.learner.global_settings = {}
    run.dataset.fingerprint, run.learner.optimizer_order = data, ()
    consistency.check_same_options(group, RunContext.shared_values.fget(run))


@pytest.mark.parametrize("name", NAMES)
def test_option_is_compared_or_free(name):
    option = f"--{name.replace('_', '-')}"
    refused = pytest.raises(UserError, match=f"rank 1 has {option} another, rank 0 has ")
    with contextlib.nullcontext() if name in FREE_PER_RANK else refused:
        compare(WithOther(**{option: "another"}))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        # A file of one name can have different networks on two hosts.
        ({"network": CIFAR_LENET}, r"rank 1 has layers [0-9a-f]{16}, rank 0 has [0-9a-f]{16}; give every rank"),
        ({"data": "shuffled data"}, "rank 0 has data; give every rank the same rows in the same order"),
    ],
)
def test_layers_and_data_are_compared(other, message):
    compare(recording := Recording(), **other)
    with pytest.raises(UserError, match=message):
        compare(WithOther(**recording.values))


def test_reference_lists_the_free_options():
    page = (ROOT / "docs" / "reference.md").read_text()
    (listed,) = re.findall(r"May differ between ranks: (.*?)\.", page, re.S)
    assert {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", listed)} == FREE_PER_RANK <= set(NAMES)
