"""Rank and size from launchers' variables, where ranks meet, and which cores `--bind auto` gives to a rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import wait_for

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info, resources
from hvdtrain.system.resources import Core


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


@pytest.mark.parametrize(
    ("words", "variables", "in_shell"),
    [
        (["-i"], {"SLURM_PTY_PORT": "1"}, True),
        ([], {"SLURM_PTY_PORT": "1"}, True),
        (["-c", "sleep 60; :"], {"SLURM_PTY_PORT": "1"}, False),  # it starts the program, on each rank
        ([], {}, False),
        ([], {"SLURM_PTY_PORT": "1", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ([], {"SLURM_PTY_PORT": "1", "HVDTRAIN_RANK": "1", "HVDTRAIN_SIZE": "2"}, False),  # of a job in that shell
        (None, {"SLURM_PTY_PORT": "1"}, False),  # srun --pty -n 2 python ...
    ],
)
def test_a_program_in_a_shell_of_srun_is_no_rank(words, variables, in_shell):
    shell = subprocess.Popen(["sh", *(words or [])], stdin=subprocess.PIPE)
    task = str(os.getpid() if words is None else shell.pid)
    wait_for(Path(f"/proc/{shell.pid}/cmdline").read_bytes, 10)
    given = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_TASK_PID": task, **variables}
    try:
        if in_shell:
            with pytest.raises(
                UserError, match="srun --pty started this shell as one of 2 tasks, none of which is this"
            ):
                rank_info.detect(given)
        else:
            assert rank_info.detect(given).size == int(given["SLURM_STEP_NUM_TASKS"])
    finally:
        shell.kill()
        shell.communicate()


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


def machine(root, nodes, cores_per_node, siblings=2):
    """A folder like /sys/devices/system; core i of n has the hardware threads i, i + n, ..., as Linux counts."""
    count = nodes * cores_per_node
    for core in range(count):
        threads = [core + count * number for number in range(siblings)]
        for thread in threads:
            folder = root / f"cpu/cpu{thread}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(",".join(map(str, threads)) + "\n")
    for node in range(nodes):
        first = node * cores_per_node
        ranges = [f"{first + count * n}-{first + count * n + cores_per_node - 1}" for n in range(siblings)]
        (root / f"node/node{node}").mkdir(parents=True)
        (root / f"node/node{node}/cpulist").write_text(",".join(ranges) + "\n")


def shares(found, ranks):
    parts = [resources.core_share(found, rank, ranks) for rank in range(ranks)]
    return [resources.core_list(thread for core in part for thread in core.threads) for part in parts]


@pytest.mark.parametrize(
    ("kind", "allowed", "expected"),
    [
        (
            {"nodes": 2, "cores_per_node": 4},
            range(16),
            {
                2: ["0-3,8-11", "4-7,12-15"],
                3: ["0-1,8-9", "2-4,10-12", "5-7,13-15"],
                4: ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"],
            },
        ),
        ({"nodes": 1, "cores_per_node": 8}, {2, 3, 4, 5, 10, 11}, {2: ["2-3,10-11", "4-5"]}),
        (
            {"nodes": 1, "cores_per_node": 8, "siblings": 1},
            range(8),
            {1: [""], 4: ["0-1", "2-3", "4-5", "6-7"], 5: [""] * 5, 9: [""] * 9},
        ),
    ],
    ids=["two nodes", "those that the control group allows", "none where a rank would get too few for two threads"],
)
def test_ranks_share_the_cores_of_a_host(tmp_path, kind, allowed, expected):
    machine(tmp_path, **kind)
    found = resources.read_cores(allowed, tmp_path)
    assert {ranks: shares(found, ranks) for ranks in expected} == expected


def test_nodes_whose_threads_alternate_and_a_kernel_without_them(tmp_path):
    machine(tmp_path, nodes=2, cores_per_node=2, siblings=1)
    for node, threads in enumerate(("0,2", "1,3")):
        (tmp_path / f"node/node{node}/cpulist").write_text(threads)
    assert shares(resources.read_cores(range(4), tmp_path), 2) == ["0,2", "1,3"]
    assert resources.read_cores({3, 1}, tmp_path / "none") == [Core(0, (1,)), Core(0, (3,))], "it tells nothing"


BIND = """
import os, sys, threading
from hvdtrain.system import resources
resources.MIN_THREADS = 1
if sys.argv[1] == "first":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
bound = resources.bind_cores(uses_gpu=False)
seen = []
thread = threading.Thread(target=lambda: seen.append(frozenset(os.sched_getaffinity(0))))
thread.start()
thread.join()
assert seen == [bound.after] == [resources.core_binding().after]
print(len(bound.before), len(bound.after), resources.cores_of_rank(), bound.text or "none")
"""


def bound_rank(how, rank, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": "2"}
    command = [sys.executable, "-c", BIND, how]
    return subprocess.run(command, env={**environment, **variables}, text=True, capture_output=True, check=True).stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_and_its_threads_are_bound_unless_it_is_already():
    first, second = (bound_rank("all", rank).split() for rank in "01")
    if first[3] == "none":
        pytest.skip("a launcher, a CPU quota or taskset limits this process")
    assert int(first[1]) + int(second[1]) == int(first[0])
    assert first[3] != second[3]
    assert first[2] == second[2] == str(int(first[0]) // 2)
    assert bound_rank("all", "0", SLURM_CPUS_PER_TASK="1").split()[2] == "1"
    assert bound_rank("first", "0").split() == ["1", "1", "1", "none"]


@pytest.mark.parametrize(
    ("own", "launcher", "granted", "quota", "ranks", "cores"),
    [
        (8, 8, 8, 0, 2, 4),
        (8, 8, 8, 0, 3, 2),
        (8, 8, 8, 0, 16, 1),
        (8, 8, 8, 6, 2, 3),  # a quota is of all ranks
        (8, 8, 8, 1, 2, 1),
        (4, 4, 8, 0, 2, 2),  # taskset before the launcher
        (4, 8, 8, 0, 2, 4),  # bound by the launcher
        (1, 8, 8, 0, 2, 1),
        (4, 8, 8, 0, 4, 2),  # bound to a socket, with another rank
        (4, 64, 8, 0, 2, 4),  # the daemon of a batch system has all cores, the job has fewer
        (2, 64, 0, 0, 2, 1),  # the kernel does not tell
        (2, 8, 8, 0, 1, 2),
    ],
)
def test_a_rank_has_an_equal_share_of_the_cores(monkeypatch, own, launcher, granted, quota, ranks, cores):
    own, launcher, granted = (frozenset(range(count)) for count in (own, launcher, granted))
    monkeypatch.setattr(resources, "core_binding", lambda: resources.Binding(own, own))
    monkeypatch.setattr(resources, "_granted", lambda allowed: granted)
    monkeypatch.setattr(resources, "cpu_quota", lambda: quota)
    monkeypatch.setattr("hvdtrain.system.launching.affinity", lambda own: launcher)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(ranks))
    assert resources.cores_of_rank() == cores
