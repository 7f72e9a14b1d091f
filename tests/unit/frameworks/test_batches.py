"""Which device a rank uses, and what its rows weigh."""

import pytest

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import choose_device, scale_of_rows


class LocalRank2(SingleProcess):
    local_rank = 2


def test_device_of_a_rank():
    assert choose_device("auto", True, 4, LocalRank2()) == "cuda:2"
    assert choose_device("cpu", True, 4, LocalRank2()) == "cpu"
    assert choose_device("auto", False, 0, SingleProcess()) == "cpu"
    with pytest.raises(UserError, match=r"local rank 2 has no GPU: .*2"):
        choose_device("auto", True, 2, LocalRank2())
    assert choose_device("auto", True, 2, LocalRank2(), shared=True) == "cuda:0"
    with pytest.raises(UserError, match="sees no GPU"):
        choose_device("gpu", False, 0, SingleProcess())


def test_scale_of_rows_is_the_number_of_ranks_rounded_up_to_a_power_of_two():
    assert [scale_of_rows(ranks) for ranks in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
