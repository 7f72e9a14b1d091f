"""Which rank this process is, from one table of the environment variables that launchers set; initializes no library.

hvdtrain's own launcher comes first, as it may have started one of the others. Horovod's variables come next: with
`horovodrun` inside a Slurm job every rank inherits the SLURM_* variables of the batch node, which would be wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.network import HOST_NAME


class RankInfo(NamedTuple):
    """What the launcher's variables say about this process."""

    launcher: str
    rank: int
    size: int
    local_rank: int

    @property
    def source(self) -> str:
        """The variable that says so, which a shell may have of another job."""
        return VARIABLES.get(self.launcher.partition(" ")[0], (self.launcher,))[0]


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
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
"""Where rank 0 listens, for strategies whose ranks connect to each other without Horovod."""
TOKEN = "HVDTRAIN_TOKEN"
"""The per-job secret by which the ranks of a job authenticate each other."""
TOKEN_FILE = "HVDTRAIN_TOKEN_FILE"
"""A file that holds the token, where it must not be among the variables."""
LOCAL_SIZE = (
    "HVDTRAIN_LOCAL_SIZE",
    *("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"),
)
"""Variables in which launchers pass the number of ranks on a host; hvdtrain's first."""
LAUNCHER = "HVDTRAIN_LAUNCHER"
"""The launcher that `hvdtrain launch` used: local, horovodrun, mpirun or srun."""
JOB = "HVDTRAIN_JOB"
"""A random name of the job, the same in all its attempts; `hvdtrain launch` sets it."""
RUN_NAME = "HVDTRAIN_RUN_NAME"
"""The name that `hvdtrain launch` gives the run of a job, unless the program names it itself."""
RESUME = "HVDTRAIN_RESUME"
"""Asks training to resume the run of its name, as --resume auto does, for `restarts` or `requeue`: the feature of
`hvdtrain launch` that starts the same command line again."""
REPLACES = "HVDTRAIN_REPLACES"
"""Set for a rank that is started while others of its job may train already."""
START_TIMEOUT = "HVDTRAIN_START_TIMEOUT"
"""--start-timeout of `hvdtrain launch`: the seconds for which a rank waits until all ranks have started."""
START_TIMEOUT_S = 120.0
"""Its default."""
GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
"""How long Horovod's Gloo waits for another rank: at the start, and in each exchange."""
TF_CONFIG = "TF_CONFIG"


def detect(environment: Mapping[str, str] = os.environ) -> RankInfo:
    """This process's rank in its job; rank 0 of 1 where no launcher has set variables.

    Raises UserError if the variables do not hold a rank below a size, or TF_CONFIG is not what TensorFlow reads.
    """
    for launcher, names in VARIABLES.items():
        rank, size, local_rank = (environment.get(name) for name in names)
        if rank is None or size is None:
            continue
        try:
            by = f"{LAUNCH} {environment.get(LAUNCHER, 'local')}" if launcher == LAUNCH else launcher
            info = RankInfo(by, int(rank), int(size), int(local_rank or 0))
        except ValueError:
            info = RankInfo(launcher, 0, 0, 0)
        if not 0 <= info.rank < info.size or info.local_rank < 0:
            raise UserError(
                f"{names[0]}={rank} {names[1]}={size} {names[2]}={local_rank} must be integers with 0 <= rank < size",
                f"unset them, or start with {launcher}",
            )
        if launcher == "srun" and info.size > 1 and _in_shell(environment):
            raise UserError(
                f"srun --pty started this shell as one of {size} tasks, none of which is this program",
                f"start it by srun itself, or here by: python -m hvdtrain launch local -n {size} -- ...",
            )
        return info
    if environment.get(TF_CONFIG):
        tasks = cluster(environment)
        # TF_CONFIG has no local rank: each worker of a host is given its own visible GPUs.
        return RankInfo(TF_CONFIG, tasks.rank, len(tasks.addresses), 0)
    return RankInfo("none", 0, 1, 0)


def _in_shell(environment: Mapping[str, str]) -> bool:
    """Whether this program runs in a shell that reads a terminal of srun --pty."""
    with suppress(OSError, KeyError, ValueError):
        task = int(environment["SLURM_TASK_PID"])
        _, *words, _ = Path(f"/proc/{task}/cmdline").read_bytes().split(b"\0")
        return "SLURM_PTY_PORT" in environment and task != os.getpid() and all(word[:1] == b"-" for word in words)
    return False


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of ranks on this host, from the launcher's variables.

    Where they do not tell it, that of all ranks under hvdtrain's launcher, else 1. Raises UserError as `detect` does.
    """
    for name in LOCAL_SIZE:
        if environment.get(name, "").isdecimal():
            return max(int(environment[name]), 1)
    with suppress(KeyError, ValueError, IndexError, UserError):
        return slurm_tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])[int(environment["SLURM_NODEID"])]
    return detect(environment).size if environment.get(VARIABLES[LAUNCH][1]) else 1


def rendezvous(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Address and port where rank 0 waits for the other ranks.

    MASTER_ADDR, and MASTER_PORT + 1, as torchrun itself listens on MASTER_PORT; else the first task of TF_CONFIG, or
    the first node of the Slurm step. Raises UserError if none of these is set.
    """
    address, port = environment.get(ADDRESS), environment.get(PORT, "")
    if not address and environment.get(TF_CONFIG):
        return cluster(environment).addresses[0]  # TensorFlow also listens there, but later
    if not address and "SLURM_STEP_NODELIST" in environment:
        address = slurm_hosts(environment["SLURM_STEP_NODELIST"])[0]
        # Derived from the job's number, so that two jobs on the same nodes rarely choose the same port.
        job = environment.get("SLURM_JOB_ID", "")
        port = str(20000 + int(job) % 20000) if NUMBER.fullmatch(job) else ""
    if not address or not NUMBER.fullmatch(port) or not 0 < int(port) < MAX_PORT - 1:
        reason = f"{detect(environment).launcher} set no {ADDRESS} and {PORT}, the address of rank 0"
        raise UserError(reason, "start with python -m hvdtrain launch local or torchrun, or set both on all ranks")
    return address, int(port) + 1


def token(environment: Mapping[str, str] = os.environ) -> str:
    """The per-job secret by which ranks authenticate each other; empty where the launcher set none.

    Raises UserError if its file cannot be read, or users other than its owner can access it.
    """
    path = environment.get(TOKEN_FILE)
    if not path or environment.get(TOKEN):
        return environment.get(TOKEN, "")
    try:
        if os.stat(path).st_mode & 0o077:
            raise PermissionError("users other than its owner can access it")
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"write a random text into it, and chmod 600 {path}"
        raise UserError(f"{TOKEN_FILE}={path}: it cannot be used ({error})", remedy) from None


def start_timeout_s(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds for which a rank waits until all ranks have started. Raises UserError if the variable is not a number."""
    text = environment.get(START_TIMEOUT, str(START_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(f"{START_TIMEOUT}={text} is not a number of seconds", "set it to 120, for example")
    return seconds


def host_name(environment: Mapping[str, str] = os.environ) -> str:
    """This host's name. Slurm's name of the node comes first, as several of its nodes may share one host."""
    return environment.get("SLURMD_NODENAME") or os.uname().nodename


TRAINING_TASKS = ("chief", "worker")
"""Tasks that train, in the order of their ranks: TensorFlow's strategies also count the chief first."""
MAX_TASKS = 1 << 16
TASKS_REMEDY = (
    'write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, or unset it: the tasks '
    "of hvdtrain are chief and worker only, as it evaluates after each epoch, and has no servers"
)


class TrainingTasks(NamedTuple):
    """The tasks that train, and which of them this process is."""

    addresses: tuple[tuple[str, int], ...]
    """Host and port of each rank."""
    rank: int


def cluster(environment: Mapping[str, str] = os.environ) -> TrainingTasks:
    """TensorFlow's processes, by TF_CONFIG.

    Raises UserError if it is invalid, or this process is an evaluator or a server.
    """
    try:
        config = json.loads(environment[TF_CONFIG])
        tasks, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
        if not isinstance(tasks, dict) or not all(isinstance(tasks.get(name, []), list) for name in TRAINING_TASKS):
            raise ValueError("cluster does not list tasks")
        if kind not in TRAINING_TASKS and isinstance(kind, str) and kind:
            raise ValueError(f"this process is the task {kind!r}, which does not train")
        if tasks.get("ps"):
            raise ValueError("it names parameter servers, which no strategy uses")
        listed = {name: [_address(worker) for worker in tasks.get(name, [])] for name in TRAINING_TASKS}
        if len(listed["chief"]) > 1 or sum(map(len, listed.values())) > MAX_TASKS:
            raise ValueError(f"more than one chief, or more than {MAX_TASKS} tasks")
        position = int(index) if re.fullmatch(r"[0-9]{1,9}", str(index)) else -1
        if not 0 <= position < len(listed[kind]):
            raise ValueError(f"task.index is not the index of a {kind}")
        return TrainingTasks(
            (*listed["chief"], *listed["worker"]), position + len(listed["chief"]) * (kind == "worker")
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"TF_CONFIG is not what MultiWorkerMirroredStrategy expects ({error})"
        raise UserError(reason, TASKS_REMEDY) from None


def _address(task: Any) -> tuple[str, int]:
    host, _, port = task.rpartition(":") if isinstance(task, str) else ("", "", "")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < MAX_PORT:
        raise ValueError("a task is not host:port")
    return host, int(port)


MAX_HOSTS = 1 << 16
MAX_NAME = 253
"""Characters of a host name in DNS (RFC 1035)."""
SLURM_REMEDY = "start with srun or sbatch, and leave SLURM_* variables unchanged"


def slurm_hosts(nodes: str) -> list[str]:
    """The hosts of Slurm's node list: node01, node02, node07 and other for `node[01-02,07],other`.

    Raises UserError if the list is not as Slurm writes it, or is one of too many hosts.
    """
    names = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    try:
        if ",".join(names) != nodes or not names or "[]" in nodes:
            raise ValueError("is not as Slurm writes it, such as node[01-04,07]")
        hosts = _limited(host for name in names for host in _expanded(name))
        if not all(map(HOST_NAME.fullmatch, hosts)):
            raise ValueError("holds what is not the name of a host")
    except ValueError as problem:
        raise UserError(f"the node list {nodes!r:.80} {problem}", SLURM_REMEDY) from None
    return hosts


def _limited(names: Iterable[str]) -> list[str]:
    """All names. Raises ValueError if there are too many: a short list may expand to more than fit into memory."""
    limited = list(itertools.islice(names, MAX_HOSTS + 1))
    if len(limited) > MAX_HOSTS:
        raise ValueError(f"names more than {MAX_HOSTS} hosts")
    return limited


def _expanded(name: str) -> list[str]:
    """The hosts of one name that may hold ranges."""
    hosts = [""]
    for plain, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", name):
        if len(hosts[0]) + len(plain) > MAX_NAME:  # checked before the names are multiplied
            raise ValueError("holds a name that is too long for a host")
        parts = ranges.split(",") if ranges else []
        choices = _limited(number for part in parts for number in _numbers(part)) or [""]
        hosts = _limited(f"{host}{plain}{choice}" for host in hosts for choice in choices)
    return hosts


def _numbers(part: str) -> list[str]:
    """`07`, or `01` to `04` for 01-04, with as many digits."""
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not match or not first <= last < first + MAX_HOSTS:
        raise ValueError(f"is not as Slurm writes it: {part!r} is no range such as 01-04")
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def slurm_tasks_per_node(text: str) -> list[int]:
    """Tasks of each node: [2, 2, 2, 1] for `2(x3),1`. Raises UserError if the text is not as Slurm writes it."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,5})\))?", part)
        counts += [int(match[1])] * int(match[2] or 1) if match else []
        if not match or len(counts) > MAX_HOSTS:
            raise UserError(f"tasks per node {text!r:.80} are not as Slurm writes them, such as 2(x3),1", SLURM_REMEDY)
    return counts
