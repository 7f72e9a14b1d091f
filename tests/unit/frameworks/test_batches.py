"""Which device a rank uses, what its rows weigh, the loss scale that follows, and parameters without weight decay."""

import pytest
from support.fake_learner import NETWORK
from support.learners import learner

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import choose_device, scale_of_rows
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.tasks.target import NetworkTarget


class LocalRank2(SingleProcess):
    local_rank = 2


def test_device_of_a_rank():
    def chosen(device, count, group, **options):
        return choose_device(Strategy(Config(**options), RuntimeOptions(device=device), group), count)

    assert chosen("auto", 4, LocalRank2()) == "cuda:2"
    assert chosen("cpu", 4, LocalRank2()) == "cpu"
    assert chosen("auto", 0, SingleProcess()) == "cpu"
    with pytest.raises(UserError, match=r"local rank 2 has no GPU: .*2"):
        chosen("auto", 2, LocalRank2())
    assert chosen("auto", 2, LocalRank2(), shards=4) == "cuda:0"
    with pytest.raises(UserError, match="sees no GPU"):
        chosen("gpu", 0, SingleProcess())


def test_scale_of_rows_is_the_number_of_ranks_rounded_up_to_a_power_of_two():
    assert [scale_of_rows(ranks) for ranks in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]


def set_scale_of_torch(trained, scale, steps):
    scaler = trained._scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": steps})


def set_scale_of_tensorflow(trained, scale, steps):
    trained._scale.value.assign(scale)
    trained._scale.good_steps.assign(steps)


@pytest.mark.parametrize(
    ("framework", "set_scale", "get_scale"),
    [
        ("torch", set_scale_of_torch, lambda trained: trained._scaler.get_scale()),
        ("tensorflow", set_scale_of_tensorflow, lambda trained: float(trained._scale.value)),
    ],
)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 3), (4, 3), (2, 16)])
def test_a_loss_scale_follows_the_number_of_ranks(framework, set_scale, get_scale, before, after, monkeypatch):
    """A row weighs more on one of several ranks; fp16 then overflows at the same steps as in one process."""

    def made(ranks):
        monkeypatch.setattr(SingleProcess, "size", ranks)
        return learner(framework, NetworkTarget(NETWORK), precision="fp16")

    first = made(before)
    assert get_scale(first) == 65536 / scale_of_rows(before)
    set_scale(first, 1024.0, 7)
    state = first.optimizer_state()
    second = made(after)
    second.load_optimizer_state(state)
    assert get_scale(second) == 1024 * scale_of_rows(before) / scale_of_rows(after)
    assert second.optimizer_state().extra == state.extra


NAMES = ["conv1.weight", "conv1.bias", "norm1.gamma", "dense1.weight", "dense1.bias"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ((), set()),
        (("*.bias",), {"conv1.bias", "dense1.bias"}),
        (("*.bias", "norm*"), {"conv1.bias", "dense1.bias", "norm1.gamma"}),
        (("conv?.[wb]*", "conv1.bias"), {"conv1.weight", "conv1.bias"}),
        (("*",), set(NAMES)),
    ],
)
def test_patterns_choose_names(patterns, expected):
    assert without_decay(patterns, NAMES) == expected


@pytest.mark.parametrize("pattern", ["bias", "CONV*", "", "bn*"])
def test_a_pattern_that_matches_nothing_is_an_error_with_a_few_names(pattern):
    more = [f"n{number}" for number in range(20)]
    with pytest.raises(UserError, match=r"matches no trained parameter; they are conv1\.weight, .*, n0, \.\.\.;"):
        without_decay(["*.bias", pattern], NAMES + more)
