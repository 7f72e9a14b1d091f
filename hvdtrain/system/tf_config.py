"""TF_CONFIG, the variable that names the processes of a TensorFlow job and this process's task among them."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from hvdtrain.errors import UserError

TRAINING_TASKS = ("chief", "worker")
"""Tasks that train, in the order of their ranks: TensorFlow's strategies count the chief first, too."""
MAX_TASKS = 1 << 16
REMEDY = 'write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, or unset it'
OTHER_REMEDY = "start hvdtrain for the tasks chief and worker only; it evaluates after each epoch, and has no servers"


class Cluster(NamedTuple):
    """The tasks that train, and which of them this process is."""

    addresses: tuple[tuple[str, int], ...]
    """Host and port of each rank."""
    rank: int


def parse(text: str) -> Cluster:
    """The cluster of a TF_CONFIG. Raises UserError if it is invalid, or this process is an evaluator or a server."""
    try:
        config = json.loads(text)
        tasks, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        if not isinstance(tasks, dict) or not all(isinstance(tasks.get(name, []), list) for name in TRAINING_TASKS):
            raise ValueError("cluster does not list tasks")
        if kind not in TRAINING_TASKS and isinstance(kind, str) and kind:
            raise UserError(f"TF_CONFIG: this process is the task {kind!r}, which does not train", OTHER_REMEDY)
        if tasks.get("ps"):
            raise UserError("TF_CONFIG names parameter servers, which no strategy of hvdtrain uses", OTHER_REMEDY)
        listed = {name: [_address(worker) for worker in tasks.get(name, [])] for name in TRAINING_TASKS}
        if len(listed["chief"]) > 1:
            raise ValueError("more than one chief")
        if sum(map(len, listed.values())) > MAX_TASKS:
            raise ValueError(f"more than {MAX_TASKS} tasks")
        position = int(index) if re.fullmatch(r"[0-9]{1,9}", str(index)) else -1
        if not 0 <= position < len(listed[kind]):
            raise ValueError(f"task.index is not the index of a {kind}")
        return Cluster((*listed["chief"], *listed["worker"]), position + len(listed["chief"]) * (kind == "worker"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"TF_CONFIG is not what MultiWorkerMirroredStrategy expects ({error})", REMEDY) from None


def _address(task: Any) -> tuple[str, int]:
    host, _, port = task.rpartition(":") if isinstance(task, str) else ("", "", "")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ValueError("a task is not host:port")
    return host, int(port)
