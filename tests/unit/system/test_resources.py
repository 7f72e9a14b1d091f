"""Which cores `--bind auto` gives to each rank of a host."""

import os
import subprocess
import sys

import pytest

from hvdtrain.system import resources
from hvdtrain.system.resources import Core


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
    return range(count * siblings)


def shares(found, ranks):
    """The hardware threads of each rank."""
    parts = [resources.core_share(found, rank, ranks) for rank in range(ranks)]
    return [resources.core_list(thread for core in part for thread in core.threads) for part in parts]


def test_ranks_share_a_host_of_two_nodes(tmp_path):
    found = resources.read_cores(machine(tmp_path, nodes=2, cores_per_node=4), tmp_path)
    assert found[0] == Core(0, (0, 8))
    assert shares(found, 2) == ["0-3,8-11", "4-7,12-15"]
    assert shares(found, 4) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert shares(found, 3) == ["0-1,8-9", "2-4,10-12", "5-7,13-15"]
    assert {core.node for core in resources.core_share(found, 0, 4)} == {0}


def test_nodes_whose_threads_alternate(tmp_path):
    machine(tmp_path, nodes=2, cores_per_node=2, siblings=1)
    for node, threads in enumerate(("0,2", "1,3")):
        (tmp_path / f"node/node{node}/cpulist").write_text(threads)
    assert shares(resources.read_cores(range(4), tmp_path), 2) == ["0,2", "1,3"]


def test_only_threads_that_the_control_group_allows(tmp_path):
    machine(tmp_path, nodes=1, cores_per_node=8)
    assert shares(resources.read_cores({2, 3, 4, 5, 10, 11}, tmp_path), 2) == ["2-3,10-11", "4-5"]


@pytest.mark.parametrize(("ranks", "bound"), [(1, False), (4, True), (5, False), (9, False)])
def test_ranks_that_would_get_too_few_threads_are_not_bound(tmp_path, ranks, bound):
    """Eight cores of one thread: five ranks would get one core, too few for Horovod's thread, at least once."""
    found = resources.read_cores(machine(tmp_path, nodes=1, cores_per_node=8, siblings=1), tmp_path)
    assert [bool(text) for text in shares(found, ranks)] == [bound] * ranks


def test_a_kernel_that_tells_nothing(tmp_path):
    assert resources.read_cores({3, 1}, tmp_path) == [Core(0, (1,)), Core(0, (3,))]


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
print(len(bound.before), len(bound.after), os.environ.get("OMP_NUM_THREADS"), bound.text or "none")
"""


def bound_rank(how, rank, **variables):
    """What a rank of two on this host reports."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": "2"}
    command = [sys.executable, "-c", BIND, how]
    return subprocess.run(command, env={**environment, **variables}, text=True, capture_output=True, check=True).stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_and_its_threads_are_bound():
    first, second = (bound_rank("all", rank).split() for rank in "01")
    if first[3] == "none":
        pytest.skip("a launcher, a CPU quota or taskset limits this process")
    assert int(first[1]) + int(second[1]) == int(first[0])
    assert first[3] != second[3]
    assert first[2].isdecimal()
    assert bound_rank("all", "0", OMP_NUM_THREADS="7").split()[2] == "7"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_that_is_bound_already_stays_there():
    assert bound_rank("first", "0").split() == ["1", "1", "None", "none"]
