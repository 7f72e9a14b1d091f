"""Options that decide which collectives a rank calls are the same on all ranks."""

import dataclasses
import re

import pytest
from support.jobs import ROOT
from support.networks import CIFAR_LENET, LENET

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import FACTS
from hvdtrain.errors import UserError
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training.consistency import check_same_options

FREE_PER_RANK = {name for name, about in FACTS.items() if about.per_rank}
NAMES = [one.name for one in dataclasses.fields(RuntimeOptions)]


class Pair:
    """Two ranks; rank 1 has another value of one option."""

    def __init__(self, name):
        self._option = f"--{name.replace('_', '-')}"

    def gather(self, own):
        return [own, {**own, **({self._option: "another"} if self._option in own else {})}]


@pytest.mark.parametrize("name", NAMES)
def test_option_is_compared_or_free(name):
    if name in FREE_PER_RANK:
        check_same_options(Pair(name), Config(), RuntimeOptions(), NetworkTarget(LENET), "data")
        return
    with pytest.raises(UserError, match=f"rank 1 has --{name.replace('_', '-')} another, rank 0 has "):
        check_same_options(Pair(name), Config(), RuntimeOptions(), NetworkTarget(LENET), "data")


class Recording:
    """One rank. values: what it compared."""

    def gather(self, own):
        self.values = own
        return [own]


class WithOther:
    """Two ranks; rank 1 compares other values."""

    def __init__(self, values):
        self._values = values

    def gather(self, own):
        return [own, self._values]


def test_layers_are_compared():
    """A file of one name can have different networks on two hosts."""
    other = Recording()
    check_same_options(other, Config(), RuntimeOptions(), NetworkTarget(CIFAR_LENET), "data")
    with pytest.raises(UserError, match=r"rank 1 has layers [0-9a-f]{16}, rank 0 has [0-9a-f]{16}; give every rank"):
        check_same_options(WithOther(other.values), Config(), RuntimeOptions(), NetworkTarget(LENET), "data")


def test_data_is_compared():
    other = Recording()
    check_same_options(other, Config(), RuntimeOptions(), NetworkTarget(LENET), "shuffled data")
    with pytest.raises(UserError, match="rank 0 has data; give every rank the same rows in the same order"):
        check_same_options(WithOther(other.values), Config(), RuntimeOptions(), NetworkTarget(LENET), "data")


def test_reference_lists_the_free_options():
    page = (ROOT / "docs" / "reference.md").read_text()
    (listed,) = re.findall(r"May differ between ranks: (.*?)\.", page, re.S)
    assert {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", listed)} == FREE_PER_RANK <= set(NAMES)
