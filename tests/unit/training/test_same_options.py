"""Options that decide which collectives a rank calls are the same on all ranks."""

import contextlib
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
    check_same_options(group, Config(), RuntimeOptions(), NetworkTarget(network), data)


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
