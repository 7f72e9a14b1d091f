"""Variables that launchers and Slurm set, and the tasks of an array."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.inputs import NUMBER_TEXTS, TOO_DEEP, json_like, text_like
from fuzz.properties import FUZZ, rejects_cleanly
from hvdtrain.jobs import gloo, hosts, sbatch
from hvdtrain.system import rank_info

NODES = text_like(
    ("node[01-04,07],other", "a,b", "r[1-2]n[1-3]"), ("[", "]", ",", "-", "[1-65536]", ",a[1-60000]", "[0-9]")
)
TASKS = text_like(("2(x3),1", "2", "1(x2)"), ("(x", ")", ",", "1(x99999),", "(x2)", "999999"))


@FUZZ
@given(NODES, TASKS)
@example("a[1-65536]," * 9000 + "b", "1(x99999)," * 9000 + "1")
@example(f"a[{'1-65536,' * 9000}1]", "1")
@example("[1-60000]" + "å" * 60000 + "[1-60000]", "1")
def test_slurm_lists(nodes: str, tasks: str) -> None:
    with rejects_cleanly():
        rank_info.slurm_hosts(nodes)
    with rejects_cleanly():
        rank_info.slurm_tasks_per_node(tasks)
    with rejects_cleanly():
        hosts.slurm_hosts({"SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": tasks})


VARIABLES = [name for names in rank_info.VARIABLES.values() for name in names]
RANK_VARIABLES = st.dictionaries(
    st.sampled_from([*VARIABLES, rank_info.ADDRESS, rank_info.PORT, rank_info.LAUNCHER, "SLURM_STEP_NODELIST",
                     "SLURM_JOB_ID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"]),
    st.sampled_from([*NUMBER_TEXTS, "1", "2", "3", "2(x2)", "node[1-2]", "x", "host", "\udc80"]),
)  # fmt: skip
SLURM = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a,b", "SLURM_JOB_ID": "7",
         "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}  # fmt: skip
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "host", "MASTER_PORT": "1234"}


@FUZZ
@given(
    st.sampled_from([SLURM, TORCHRUN, {}]), RANK_VARIABLES, st.sets(st.sampled_from([*SLURM, *TORCHRUN]), max_size=2)
)
@example(SLURM, {"SLURM_LOCALID": "7"}, set())
@example(SLURM, {"SLURM_NODEID": "9" * 5000}, set())
@example(TORCHRUN, {"MASTER_PORT": "9" * 5000}, set())
def test_launcher_variables(valid: dict[str, str], changes: dict[str, str], removed: set[str]) -> None:
    environment = {name: value for name, value in {**valid, **changes}.items() if name not in removed}
    with rejects_cleanly():
        found = rank_info.detect(environment)
        assert 0 <= found.rank < found.size and found.local_rank >= 0
        gloo.layout(found, environment)
    with rejects_cleanly():
        check_rendezvous(environment)


def check_rendezvous(environment: dict[str, str]) -> None:
    address, port = rank_info.rendezvous(environment)
    assert address and isinstance(address, str) and 0 < port < 1 << 16


TF_CONFIG = {"cluster": {"chief": ["c:1"], "worker": ["a:1234", "b:1234"]}, "task": {"type": "worker", "index": 1}}


@FUZZ
@given(
    json_like(TF_CONFIG)
    | st.builds(
        lambda worker: json.dumps({**TF_CONFIG, "cluster": {"worker": [worker, "b:1"]}}).encode(),
        text_like(("a:1",), ":[]"),
    )
)
@example(TOO_DEEP)
@example(json.dumps({**TF_CONFIG, "task": {"type": "worker", "index": float("inf")}}).encode())
@example(json.dumps({**TF_CONFIG, "task": {"type": ["chief"], "index": 0}}).encode())
@example(json.dumps({**TF_CONFIG, "cluster": {"worker": ["a:b", "b:1"]}}).encode())
@example(json.dumps({**TF_CONFIG, "cluster": {"worker": {"a:1": 0, "b:1": 0}}}).encode())
def test_tf_config(content: bytes) -> None:
    environment = {rank_info.TF_CONFIG: content.decode(errors="surrogateescape")}
    with rejects_cleanly():
        found = rank_info.detect(environment)
        assert 0 <= found.rank < found.size
    with rejects_cleanly():
        check_rendezvous(environment)


@FUZZ
@given(text_like(("0-9%2", "1,3,5", "0-8:4", "7"), "-,:%0٣ ") | st.text(max_size=4))
def test_arrays(text: str) -> None:
    with rejects_cleanly():
        assert 0 <= sbatch.last_task(text) <= sbatch.MAX_TASK
