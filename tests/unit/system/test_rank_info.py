"""Rank and size from launchers' variables, and where ranks meet."""

import json

import pytest

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("none", 0, 1, 0)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1"}, ("horovodrun", 3, 4, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpirun", 1, 2, 0)),
        # The batch node's variables, inherited under horovodrun inside Slurm, must not win.
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
            ("horovodrun", 1, 2, 0),
        ),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, ("srun", 5, 8, 1)),
    ],
)
def test_rank_from_a_launcher_s_variables(variables, expected):
    assert tuple(rank_info.detect(variables)) == expected


def test_variables_that_are_not_integers():
    with pytest.raises(UserError, match="HOROVOD_RANK"):
        rank_info.detect({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"})


def test_rendezvous_address_of_rank_0():
    assert rank_info.rendezvous({"MASTER_ADDR": "h", "MASTER_PORT": "5"}) == ("h", 6)
    tf_config = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})
    assert rank_info.rendezvous({"TF_CONFIG": tf_config}) == ("a", 1)
    assert rank_info.detect({"TF_CONFIG": tf_config}) == ("TF_CONFIG", 1, 2, 0)
    slurm = {"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_JOB_ID": "20005", "SLURM_PROCID": "0"}
    assert rank_info.rendezvous(slurm) == ("n2", 20006)
    for broken in ("", "{}", "[]", '{"cluster": {"worker": ["a"]}, "task": {"index": 0}}'):
        if broken:
            with pytest.raises(UserError, match="TF_CONFIG is not"):
                rank_info.detect({"TF_CONFIG": broken})
