"""The registry of strategies, where mypy cannot check it, and its list."""

import re
import sys

import pytest
from support.learners import learner
from support.mixed_networks import FLATTENED
from support.networks import shaped
from support.stack import FRAMEWORKS

from hvdtrain.collectives import ring
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_learner, check_request, find_strategy, list_strategies
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training.process import strategy_list

TARGET = NetworkTarget(shaped(FLATTENED))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_strategy_is_registered_completely(framework):
    """Each has a docstring for --strategy help, and supports the default of every option."""
    rows, text = list_strategies(framework), strategy_list(framework)
    assert len({row.strategy for row in rows}) == len(rows) and rows[0].strategy == "single"
    assert {row.strategy for row in rows} >= {"horovod", "ring", "mpi"}
    width = max(len(row.strategy) for row in rows)
    for row in rows:
        assert row.about.endswith(".") and len(row.about) <= 100, row
        assert f"\n  {row.strategy:{width}} {row.about}\n" in text and "not here" not in text
        entry = find_strategy(Config(framework=framework, strategy=row.strategy))
        assert issubclass(entry.strategy, Strategy), row
        assert all(isinstance(module, str) for module in entry.requires), row


def test_the_list_says_why_a_strategy_cannot_run(monkeypatch):
    """With an mpi4py that cannot be imported, as if MPI were missing."""
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    assert "not here: mpi4py cannot be imported (" in strategy_list("torch")
    with pytest.raises(UserError, match="mpi4py cannot be imported"):
        check_request(Config(framework="torch", strategy="mpi"), TARGET, RuntimeOptions())


@pytest.mark.parametrize(
    ("framework", "options", "error"),
    [
        ("torch", {"strategy": "mirrored"}, "torch has no such strategy; --strategy help lists them"),
        ("mxnet", {"strategy": "kvstore"}, "--strategy kvstore: mxnet has no such strategy (did you mean"),
        ("torch", {"strategy": "ddp", "devices": 2}, "--devices 2: the strategy uses one device per process"),
        ("torch", {"strategy": "manual", "shards": 4}, "--shards 4: the order in which the strategy adds is not fixed"),
        ("torch", {"groups": 9}, "--groups 9: lenet has 4 gradients"),
        ("mxnet", {"precision": "fp16"}, "--precision fp16: mxnet does not compute in it on this processor (MXNetE"),
    ],
)
def test_what_a_strategy_does_not_support_is_an_error_before_training(framework, options, error):
    devices = options.pop("devices", 0)
    with pytest.raises(UserError, match=re.escape(error)):
        build_learner(Config(framework=framework, **options), TARGET, None, RuntimeOptions(devices=devices))


def test_launchers_that_do_not_fit(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="torchrun set no MASTER_ADDR and MASTER_PORT"):
        ring.start()
    with pytest.raises(UserError, match="torchrun started 2 processes, but with --strategy dataparallel each would"):
        learner("torch", TARGET, strategy="dataparallel")
