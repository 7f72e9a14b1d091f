"""Options with which a job cannot be elastic."""

import pytest

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import run_elastic


def test_adasum_has_a_state_by_rank_that_a_new_rank_cannot_get():
    with pytest.raises(UserError, match="--elastic: in PyTorch, Adasum has an optimizer state of its own"):
        run_elastic(Config(op="adasum"), lambda memory: None)
