"""Who am I, by the launcher's word: one table of environment variables, read without importing anything.

hvdtrain's own launcher comes first, as it may have started one of the others. Horovod's variables come next: under
`horovodrun` inside a Slurm job every rank inherits the batch node's SLURM_* variables, and those would lie.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import slurm


class RankInfo(NamedTuple):
    """What the launcher promised this process."""

    launcher: str
    rank: int
    size: int
    local_rank: int


# launcher: the variables that hold rank, size and local rank
LAUNCH = "launch"
VARIABLES = {
    LAUNCH: ("HVDTRAIN_RANK", "HVDTRAIN_SIZE", "HVDTRAIN_LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


MAX_PORT = 1 << 16
NUMBER = re.compile(r"[0-9]{1,18}")
# What a program needs that finds its neighbours itself: rank 0's address and, against callers that are none, a word
# that only this job knows.
ADDRESS, PORT, TOKEN = "MASTER_ADDR", "MASTER_PORT", "HVDTRAIN_TOKEN"
TOKEN_FILE = "HVDTRAIN_TOKEN_FILE"
"""A file that holds that word, for those who do not want it among the variables."""
LAUNCHER = "HVDTRAIN_LAUNCHER"
"""What hvdtrain's launcher started the ranks by: local, horovodrun, mpirun or srun."""
TF_CONFIG = "TF_CONFIG"
ELASTIC = "HOROVOD_ELASTIC"
"""Horovod's, of jobs whose ranks come and go."""


def detect(environment: Mapping[str, str] = os.environ) -> RankInfo:
    """This process's place in its job; a process of its own, rank 0 of 1, where no launcher left a word.

    Raises UserError where the variables are no numbers, or TF_CONFIG is not what TensorFlow reads.
    """
    for launcher, names in VARIABLES.items():
        rank, size, local_rank = (environment.get(name) for name in names)
        if rank is not None and size is not None:
            try:
                by = f"{LAUNCH} {environment.get(LAUNCHER, 'local')}" if launcher == LAUNCH else launcher
                found = RankInfo(by, int(rank), int(size), int(local_rank or 0))
                if not 0 <= found.rank < found.size or found.local_rank < 0:
                    raise ValueError
                return found
            except ValueError:
                raise UserError(
                    f"{names[0]}={rank} {names[1]}={size} {names[2]}={local_rank} are no whole numbers "
                    f"of a rank below a size: unset them, or start by {launcher}"
                ) from None
    if environment.get(TF_CONFIG):
        config = tf_config(environment)
        # Each worker of a host has its own GPUs to see: TF_CONFIG tells no local rank.
        return RankInfo(TF_CONFIG, int(config["task"]["index"]), len(config["cluster"]["worker"]), 0)
    return RankInfo("none", 0, 1, 0)


def rendezvous(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Address and port where rank 0 waits for the other ranks.

    MASTER_ADDR, and the port above MASTER_PORT, on which torchrun itself listens; else the first worker of TF_CONFIG,
    or the first node of the Slurm step. Raises UserError where none of these tells.
    """
    address, port = environment.get(ADDRESS), environment.get(PORT, "")
    if not address and environment.get(TF_CONFIG):
        host, _, port = tf_config(environment)["cluster"]["worker"][0].rpartition(":")
        return host, int(port)  # TensorFlow listens there too, but later
    if not address and "SLURM_STEP_NODELIST" in environment:
        address = slurm.hostnames(environment["SLURM_STEP_NODELIST"])[0]
        # A port that other jobs on these nodes are not likely to choose.
        job = environment.get("SLURM_JOB_ID", "")
        port = str(20000 + int(job) % 20000) if NUMBER.fullmatch(job) else ""
    if not address or not NUMBER.fullmatch(port) or not 0 < int(port) < MAX_PORT - 1:
        raise UserError(
            f"{detect(environment).launcher} gave no {ADDRESS} and {PORT}, where rank 0 can be met: "
            "start by python -m hvdtrain launch local or torchrun, or set both on all ranks"
        )
    return address, int(port) + 1


def tf_config(environment: Mapping[str, str]) -> dict[str, Any]:
    """TF_CONFIG, in which TensorFlow's users name the workers. Raises UserError where it is none."""
    try:
        config = json.loads(environment[TF_CONFIG])
        workers, task = config["cluster"]["worker"], config["task"]
        if not NUMBER.fullmatch(str(task["index"])) or int(task["index"]) >= len(workers):
            raise ValueError("task.index is no worker's")
        if not isinstance(workers, list) or not all(map(_is_worker, workers)):
            raise ValueError("a worker is not host:port")
        return config
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"TF_CONFIG is not as MultiWorkerMirroredStrategy wants it ({error}); "
            'write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, or unset it'
        ) from None


def _is_worker(worker: Any) -> bool:
    host, _, port = str(worker).rpartition(":")
    return bool(host and NUMBER.fullmatch(port)) and 0 < int(port) < MAX_PORT


def token(environment: Mapping[str, str] = os.environ) -> str:
    """The word by which the ranks of a job know each other; empty where the launcher gave none.

    Raises UserError where its file cannot be read, or others can read it, too.
    """
    path = environment.get(TOKEN_FILE)
    if not path or environment.get(TOKEN):
        return environment.get(TOKEN, "")
    try:
        if os.stat(path).st_mode & 0o077:
            raise UserError(f"{TOKEN_FILE}={path}: others than its owner may use it; chmod 600 {path}")
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{TOKEN_FILE}={path}: it cannot be read ({error}); write a random text there") from None


def host_name(environment: Mapping[str, str] = os.environ) -> str:
    """This host's name. Slurm's name of the node comes first, as several of its nodes may be one host."""
    return environment.get("SLURMD_NODENAME") or os.uname().nodename
