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


def test_rendezvous_address_of_rank_0():
    assert rank_info.rendezvous({"MASTER_ADDR": "h", "MASTER_PORT": "5"}) == ("h", 6)
    slurm = {"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_JOB_ID": "20005", "SLURM_PROCID": "0"}
    assert rank_info.rendezvous(slurm) == ("n2", 20006)


def tf_config(task: str, index: object = 0, **cluster: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})}


def test_ranks_of_tf_config_are_those_of_tensorflow():
    """The chief is rank 0, and workers follow in their order."""
    workers = {"worker": ["a:1", "b:2"]}
    found = [rank_info.detect(tf_config("worker", index, **workers)) for index in (0, 1)]
    assert found == [("TF_CONFIG", 0, 2, 0), ("TF_CONFIG", 1, 2, 0)]
    assert rank_info.rendezvous(tf_config("worker", 1, **workers)) == ("a", 1)
    both = {**workers, "chief": ["c:3"]}
    found = [rank_info.detect(tf_config(*task, **both)) for task in (("chief", 0), ("worker", 0), ("worker", "1"))]
    assert [(one.rank, one.size) for one in found] == [(0, 3), (1, 3), (2, 3)]
    assert rank_info.rendezvous(tf_config("worker", 0, **both)) == ("c", 3)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (tf_config("evaluator", worker=["a:1"]), "task 'evaluator', which does not train"),
        (tf_config("ps", worker=["a:1"], ps=["b:1"]), "task 'ps', which does not train"),
        (tf_config("worker", worker=["a:1"], ps=["b:1"]), "names parameter servers"),
        (tf_config("chief", worker=["a:1"]), "task.index is not the index of a chief"),
        (tf_config("chief", chief=["a:1", "b:1"]), "more than one chief"),
        (tf_config("worker", 2, worker=["a:1", "b:1"]), "task.index is not the index of a worker"),
        (tf_config("worker", worker=["a"]), "a task is not host:port"),
        (tf_config("worker", worker=[1]), "a task is not host:port"),
        (tf_config("worker", worker={"a:1": 0}), "cluster does not list tasks"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG.*expects"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG.*expects"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK"),
    ],
)
def test_variables_of_another_form_are_rejected(variables, message):
    with pytest.raises(UserError, match=message):
        rank_info.detect(variables)


def test_local_size_from_the_launcher_s_variables():
    assert rank_info.local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}) == 3
    slurm = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"}
    assert rank_info.local_size(slurm) == 1
    assert rank_info.local_size({**slurm, "SLURM_NODEID": "0"}) == 4
    ours = {"HVDTRAIN_RANK": "0", "HVDTRAIN_SIZE": "9"}
    assert rank_info.local_size({**slurm, **ours, "SLURM_NODEID": "7"}) == 9
    assert rank_info.local_size({}) == 1


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-03,07],other", ["node01", "node02", "node03", "node07", "other"]),
        ("a-b[7],c", ["a-b7", "c"]),
        ("r[1-2]n[8-10]x", ["r1n8x", "r1n9x", "r1n10x", "r2n8x", "r2n9x", "r2n10x"]),
    ],
)
def test_hosts_of_a_node_list(nodes, hosts):
    assert rank_info.slurm_hosts(nodes) == hosts


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        *((nodes, "as Slurm writes it") for nodes in ("", ",", "a,", "a[", "a[]", "a[1-]", "a[3-1]", "a[x]", "a]b")),
        ("a[1-999999999]", "as Slurm writes it"),
        # These would reach ssh, which would read them as options.
        *((nodes, "not the name of a host") for nodes in ("-oProxyCommand=x", "a,-b", "a b", "n[1-2]/x")),
    ],
)
def test_invalid_node_list(nodes, message):
    with pytest.raises(UserError, match=message):
        rank_info.slurm_hosts(nodes)
